// Tokens that are placed without being computed: see llama_edgekv_add_cells().
#include "llama-edgekv-access.h"

#include "llama-batch.h"

#include <algorithm>
#include <typeinfo>

namespace {

// of these memories the seam knows all parts; others inherit from them
llama_edgekv_keeps by_memory(const llama_memory_i & memory) {
    const auto & type = typeid(memory);
    if (type == typeid(llama_kv_cache)) {
        return LLAMA_EDGEKV_KEEPS_ROWS;
    }

    return type == typeid(llama_kv_cache_iswa) || type == typeid(llama_memory_hybrid) || type == typeid(llama_memory_hybrid_iswa)
        ? LLAMA_EDGEKV_KEEPS_SNAPSHOTS : LLAMA_EDGEKV_KEEPS_OTHER;
}

}  // namespace

llama_edgekv_keeps llama_edgekv_what_is_kept(const llama_context * lctx) {
    const auto & hparams = lctx->get_model().hparams;
    const auto * kv = llama_edgekv_access::cache(lctx);
    // cells that keep token numbers, too
    if (!kv || llama_edgekv_access::is_guest(*kv) || hparams.ple_n_heads > 0) {
        return LLAMA_EDGEKV_KEEPS_OTHER;
    }

    const auto keeps = by_memory(*lctx->get_memory());
    for (int il = 0; il < llama_edgekv_n_layer(lctx); ++il) {
        llama_edgekv_layer layer;
        llama_edgekv_get_layer(lctx, il, &layer);
        const bool in_snapshot = keeps == LLAMA_EDGEKV_KEEPS_SNAPSHOTS &&
            (layer.kind == LLAMA_EDGEKV_LAYER_SWA || layer.kind == LLAMA_EDGEKV_LAYER_RECURRENT || layer.kind == LLAMA_EDGEKV_LAYER_IDLE);
        const bool in_rows = (layer.kind == LLAMA_EDGEKV_LAYER_ATTENTION || layer.kind == LLAMA_EDGEKV_LAYER_MLA) && !layer.v_transposed;
        if (hparams.has_kv(il) && !in_rows && !in_snapshot) {
            return LLAMA_EDGEKV_KEEPS_OTHER;
        }
    }

    return keeps;
}

bool llama_edgekv_add_cells(llama_context * lctx, int seq_id, int first_pos, int n, uint32_t * out) {
    if (llama_edgekv_what_is_kept(lctx) == LLAMA_EDGEKV_KEEPS_OTHER || llama_edgekv_stream_of(lctx, seq_id) < 0 || n < 1) {
        return false;
    }
    auto * kv = llama_edgekv_access::cache(lctx);
    kv->seq_rm(seq_id, first_pos, -1);

    // as a state that is loaded takes its cells; a token of text has the same position in each dimension
    const int n_pos = static_cast<int>(lctx->get_model().hparams.n_pos_per_embd());
    llama_batch_allocr balloc(static_cast<uint32_t>(n_pos));
    llama_ubatch ubatch = balloc.ubatch_reserve(static_cast<uint32_t>(n), 1);
    llama_seq_id seq    = seq_id;
    ubatch.seq_id_unq[0] = seq;
    for (int i = 0; i < n; ++i) {
        for (int dimension = 0; dimension < n_pos; ++dimension) {
            ubatch.pos[dimension * n + i] = first_pos + i;
        }
        ubatch.n_seq_id[i] = 1;
        ubatch.seq_id[i]   = &seq;
    }

    const auto place = kv->find_slot(ubatch, false);
    if (place.empty()) {
        return false;
    }
    kv->apply_ubatch(place, ubatch);
    std::copy(place.idxs[0].begin(), place.idxs[0].end(), out);

    return true;
}
