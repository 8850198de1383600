// Places tokens without computing them: see llama_edgekv_add_cells().
#include "llama-edgekv-access.h"
#include "llama-edgekv-home.h"
#include "llama-edgekv-parked.h"
#include "llama-edgekv-places.h"

#include "llama-batch.h"

#include <algorithm>
#include <typeinfo>
#include <vector>

namespace {

// The glue knows all parts of exactly these memories, but not of classes derived from them.
llama_edgekv_keeps by_memory(const llama_memory_i & memory) {
    const auto & type = typeid(memory);
    if (type == typeid(llama_kv_cache) || type == typeid(llama_kv_cache_dsa) || type == typeid(llama_kv_cache_msa)) {
        return LLAMA_EDGEKV_KEEPS_ROWS;
    }
    const bool windows = type == typeid(llama_kv_cache_iswa) || type == typeid(llama_kv_cache_dsa_iswa) || type == typeid(llama_memory_hybrid_iswa);
    const bool states  = type == typeid(llama_memory_hybrid) || type == typeid(llama_memory_hybrid_idx);

    return windows || states ? LLAMA_EDGEKV_KEEPS_SNAPSHOTS : LLAMA_EDGEKV_KEEPS_WHOLE;
}

// the plain cache, and the index's cache, which has the same cells; empty if there are only states
std::vector<llama_kv_cache *> caches(llama_context * lctx) {
    std::vector<llama_kv_cache *> found;
    for (auto * kv : { llama_edgekv_access::cache(lctx), llama_edgekv_access::index(lctx) }) {
        if (kv) {
            found.push_back(kv);
        }
    }
    return found;
}

// What is removed while this lives gives its memory back at the end: the first touch of a page costs more than the rows that are put there.
class refilling {
public:
    explicit refilling(llama_context * lctx) : of(caches(lctx)) { set(true); }
    ~refilling() {
        set(false);
        for (auto * kv : of) {
            llama_edgekv_give_back(*kv);
        }
    }
    refilling(const refilling &)             = delete;
    refilling & operator=(const refilling &) = delete;

private:
    void set(bool on) {
        for (auto * kv : of) {
            llama_edgekv_access::clock(llama_edgekv_access::cells(*kv, 0)).refilled = on;
        }
    }

    std::vector<llama_kv_cache *> of;
};

}  // namespace

bool llama_edgekv_get_rows(const llama_context * lctx, int il, llama_edgekv_rows * out) {
    const auto * kv    = llama_edgekv_access::cache(lctx);
    const auto * index = llama_edgekv_access::index(lctx);
    const auto * layer = kv ? llama_edgekv_access::layer(*kv, il) : nullptr;
    const auto * keys  = index ? llama_edgekv_access::layer(*index, il) : nullptr;
    *out = {};
    if (!layer || static_cast<int>(layer->il) != il || (layer->v && llama_edgekv_access::v_transposed(*kv))) {  // an earlier layer's, or in pieces
        return false;
    }
    *out = { layer->k, layer->v, keys ? keys->k : nullptr };

    return true;
}

llama_edgekv_keeps llama_edgekv_what_is_kept(const llama_context * lctx) {
    const auto & hparams = lctx->get_model().hparams;
    const auto * kv = llama_edgekv_access::cache(lctx);
    const auto * memory = lctx->get_memory();
    if (!memory || (kv && llama_edgekv_access::is_guest(*kv))) {
        return LLAMA_EDGEKV_KEEPS_OTHER;
    }
    if (typeid(*memory) == typeid(llama_memory_recurrent)) {
        return LLAMA_EDGEKV_KEEPS_SNAPSHOTS;
    }

    const auto keeps = by_memory(*memory);
    for (int il = 0; il < llama_edgekv_n_layer(lctx); ++il) {
        llama_edgekv_layer layer;
        llama_edgekv_get_layer(lctx, il, &layer);
        llama_edgekv_rows rows;
        const bool in_snapshot = keeps == LLAMA_EDGEKV_KEEPS_SNAPSHOTS &&
            (layer.kind == LLAMA_EDGEKV_LAYER_SWA || layer.kind == LLAMA_EDGEKV_LAYER_RECURRENT || layer.kind == LLAMA_EDGEKV_LAYER_IDLE);
        if (hparams.has_kv(il) && !llama_edgekv_get_rows(lctx, il, &rows) && !in_snapshot) {
            return LLAMA_EDGEKV_KEEPS_WHOLE;
        }
    }

    return keeps;
}

bool llama_edgekv_keeps_snapshots(const llama_context * lctx) {
    const auto keeps = llama_edgekv_what_is_kept(lctx);

    return keeps == LLAMA_EDGEKV_KEEPS_SNAPSHOTS || keeps == LLAMA_EDGEKV_KEEPS_WHOLE;
}

void llama_edgekv_remove_cells(llama_context * lctx, int seq_id, int first_pos) {
    for (auto * kv : caches(lctx)) {
        kv->seq_rm(seq_id, first_pos, -1);
    }
    if (lctx->get_model().hparams.indexer_kpool > 0) {
        lctx->get_memory()->seq_add(seq_id, first_pos, -1, 0);  // a shift by 0 makes pools of keys form again from here on
    }
}

// an embedding's token number, as in apply_ubatch()
static llama_token number_of_none(const llama_hparams & hparams) {
    if (hparams.ple_n_heads == 0) {
        return LLAMA_TOKEN_NULL;
    }
    return static_cast<llama_token>(hparams.ple_image_token_id != 0 ? hparams.ple_image_token_id : hparams.ple_eos_token_id);
}

bool llama_edgekv_add_cells(
        llama_context * lctx, int seq_id, int first_pos, int n, const int32_t * tokens, const int32_t * at,
        const llama_edgekv_returning * parked, uint32_t * out) {
    if (llama_edgekv_what_is_kept(lctx) == LLAMA_EDGEKV_KEEPS_OTHER || llama_edgekv_stream_of(lctx, seq_id) < 0 || n < 1) {
        return false;
    }
    const refilling memory(lctx);
    const auto stream = static_cast<uint32_t>(llama_edgekv_stream_of(lctx, seq_id));
    auto & vacated = llama_edgekv_access::clock(llama_edgekv_access::cells(*llama_edgekv_access::cache(lctx), stream)).holding()->vacated;
    vacated.clear();
    llama_edgekv_remove_cells(lctx, seq_id, first_pos);
    for (auto * kv : caches(lctx)) {
        llama_kv_cells & cells = llama_edgekv_access::cells(*kv, stream);
        for (const auto & [first, end] : vacated) {
            llama_edgekv_access::clock(cells).vacate(first, end, [&](uint32_t i) { return cells.is_empty(i); });
        }
    }

    // takes cells as the loading of a state does; a text token has the same position in each dimension
    const auto & hparams = lctx->get_model().hparams;
    const int    n_pos   = static_cast<int>(hparams.n_pos_per_embd());
    llama_batch_allocr balloc(static_cast<uint32_t>(n_pos));
    llama_ubatch ubatch = balloc.ubatch_reserve(static_cast<uint32_t>(n), 1);
    llama_seq_id seq    = seq_id;
    ubatch.seq_id_unq[0] = seq;
    for (int i = 0; i < n; ++i) {
        for (int dimension = 0; dimension < n_pos; ++dimension) {
            ubatch.pos[dimension * n + i] = !at ? first_pos + i : dimension < 3 ? at[dimension * n + i] : 0;
        }
        ubatch.token[i]    = !tokens ? 0 : tokens[i] < 0 ? number_of_none(hparams) : tokens[i];
        ubatch.n_seq_id[i] = 1;
        ubatch.seq_id[i]   = &seq;
    }

    const auto & kv = *llama_edgekv_access::cache(lctx);
    llama_kv_cache::slot_info place;
    auto fitting = parked && parked->n > 0 ? llama_edgekv_cells_for(kv, stream, seq_id, *parked, static_cast<uint32_t>(n)) : std::vector<uint32_t>();
    if (fitting.empty()) {
        place = kv.find_slot(ubatch, false);
    } else {
        place.s0 = place.s1 = stream;
        place.strm = { static_cast<llama_seq_id>(stream) };
        place.idxs = { std::move(fitting) };
    }
    if (place.empty()) {
        return false;
    }
    const int n_grow = n - (parked ? static_cast<int>(llama_edgekv_return(kv, stream, *parked, place.idxs[0])) : 0);
    if (!llama_edgekv_may_take(llama_edgekv_growth(lctx, &seq_id, &n_grow, 1), true)) {
        return false;
    }
    for (auto * kv : caches(lctx)) {
        kv->apply_ubatch(place, ubatch);
    }
    std::copy(place.idxs[0].begin(), place.idxs[0].end(), out);

    return true;
}

void llama_edgekv_turn(llama_context * lctx, int seq_id, int first_pos, int end_pos, int by) {
    const int stream = llama_edgekv_stream_of(lctx, seq_id);
    for (auto * kv : caches(lctx)) {
        llama_kv_cells & cells = llama_edgekv_access::cells(*kv, static_cast<uint32_t>(stream));
        for (uint32_t i = 0; by != 0 && i < cells.size(); ++i) {
            if (!cells.is_empty(i) && cells.seq_has(i, seq_id) && cells.pos_in(i, first_pos, end_pos)) {
                llama_edgekv_access::shift(cells, i, by);
            }
        }
    }
}

void llama_edgekv_in_image(const llama_context * lctx, uint32_t stream, const uint32_t * cells, int n, int32_t * lines, int32_t * columns) {
    const auto * kv = llama_edgekv_access::cache(lctx);
    const bool has  = kv && stream < kv->get_n_stream() && lctx->get_model().hparams.n_pos_per_embd() > 1;
    for (int i = 0; i < n; ++i) {
        const auto ext = has ? llama_edgekv_access::cells(*kv, stream).ext_get(cells[i]) : llama_kv_cell_ext();
        lines[i]   = ext.y;
        columns[i] = ext.x;
    }
}
