// Tokens that are placed without being computed: see llama_edgekv_add_cells().
#include "llama-edgekv.h"

#include "llama-batch.h"
#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-model.h"

#include <algorithm>

bool llama_edgekv_only_rows(const llama_context * lctx) {
    const auto & hparams = lctx->get_model().hparams;
    // cells that keep token numbers, too
    if (!dynamic_cast<llama_kv_cache *>(lctx->get_memory()) || hparams.ple_n_heads > 0) {
        return false;
    }

    for (int il = 0; il < llama_edgekv_n_layer(lctx); ++il) {
        llama_edgekv_layer layer;
        llama_edgekv_get_layer(lctx, il, &layer);
        const bool rows = layer.kind == LLAMA_EDGEKV_LAYER_ATTENTION || layer.kind == LLAMA_EDGEKV_LAYER_MLA;
        if (hparams.has_kv(il) && (!rows || layer.v_transposed)) {
            return false;
        }
    }

    return true;
}

bool llama_edgekv_add_cells(llama_context * lctx, int seq_id, int first_pos, int n, uint32_t * out) {
    auto * kv = dynamic_cast<llama_kv_cache *>(lctx->get_memory());
    if (!llama_edgekv_only_rows(lctx) || llama_edgekv_stream_of(lctx, seq_id) < 0 || n < 1) {
        return false;
    }

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
