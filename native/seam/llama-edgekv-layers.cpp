// The kind of a layer, the place of its K and V, and the size of its cache.
#include "llama-edgekv-access.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

//
// call sites
//

// the layer has a plain cache of its own for K and V
static bool plain_cache(const llama_hparams & hparams, int il) {
    return hparams.has_kv(il) && !hparams.is_recr(il) && !hparams.is_mla() && !hparams.is_swa(il) && !hparams.use_alibi;
}

ggml_backend_buffer_type_t llama_edgekv_home(const llama_model & model, int il, bool v_trans, ggml_backend_buffer_type_t buft) {
    const auto * hooks   = llama_edgekv_get_hooks();
    const auto & hparams = model.hparams;
    auto *       device  = model.dev_layer(il);
    if (!hooks || v_trans || !plain_cache(hparams, il) || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
        return buft;
    }
    for (int other = 0; other < static_cast<int>(hparams.n_layer()); ++other) {
        if (plain_cache(hparams, other) && model.dev_layer(other) != device) {
            return buft;
        }
    }
    if (!hooks->home_on_host(device)) {
        return buft;
    }

    // pinned, if the device's backend has such memory
    auto * host = ggml_backend_dev_host_buffer_type(device);

    return host ? host : ggml_backend_cpu_buffer_type();
}

void llama_edgekv_huge_pages([[maybe_unused]] ggml_backend_buffer_t buf) {
#ifdef __linux__
    if (!llama_edgekv_get_hooks() || ggml_backend_buffer_get_type(buf) != ggml_backend_cpu_buffer_type()) {
        return;
    }
    const uintptr_t huge  = uintptr_t{2} << 20;
    const uintptr_t base  = reinterpret_cast<uintptr_t>(ggml_backend_buffer_get_base(buf));
    const uintptr_t first = (base + huge - 1)/huge*huge;
    const uintptr_t end   = (base + ggml_backend_buffer_get_size(buf))/huge*huge;
    if (first < end) {
        madvise(reinterpret_cast<void *>(first), end - first, MADV_HUGEPAGE);  // if refused, the cache has small pages
    }
#endif
}

uint32_t llama_edgekv_kv_cells(const llama_model & model, uint32_t n_cells) {
    const auto * hooks   = llama_edgekv_get_hooks();
    const auto & hparams = model.hparams;
    // a compressed cache, and one with an index beside it, is not plain
    if (!hooks || hparams.is_mla() || hparams.indexer_head_size > 0) {
        return n_cells;
    }

    return hooks->kv_cells(n_cells);
}

//
// exports
//

int llama_edgekv_n_layer(const llama_context * lctx) {
    return static_cast<int>(lctx->get_model().hparams.n_layer());
}

template <class Rows>  // a private type of llama.cpp
static void put_rows(const llama_kv_cache & kv, const Rows & layer, llama_edgekv_layer & out) {
    out.v_transposed = layer.v && llama_edgekv_access::v_transposed(kv);
    out.host         = ggml_backend_buffer_is_host(layer.k->buffer) && (!layer.v || ggml_backend_buffer_is_host(layer.v->buffer));
    out.k            = layer.k;
    out.v            = layer.v;
}

bool llama_edgekv_get_layer(const llama_context * lctx, int il, llama_edgekv_layer * out) {
    const auto & hparams = lctx->get_model().hparams;
    if (il < 0 || il >= llama_edgekv_n_layer(lctx)) {
        return false;
    }

    *out = {};
    out->kind       = LLAMA_EDGEKV_LAYER_NONE;
    out->n_head     = static_cast<int>(hparams.n_head(il));
    out->n_head_kv  = static_cast<int>(hparams.n_head_kv(il));
    out->head_dim_k = static_cast<int>(hparams.n_embd_head_k(il));
    out->head_dim_v = static_cast<int>(hparams.n_embd_head_v(il));
    out->device     = lctx->get_model().dev_layer(il);
    out->alibi      = hparams.use_alibi;

    const auto * kv    = llama_edgekv_access::cache(lctx);
    const auto * layer = kv ? llama_edgekv_access::layer(*kv, il) : nullptr;
    if (hparams.is_recr(il) && !layer) {  // not in Falcon-H1, where every layer has a state and a cache
        out->kind = LLAMA_EDGEKV_LAYER_RECURRENT;
        return true;
    }
    const bool index = hparams.dsv4_compress_ratios[il] > 0 || (hparams.indexer_head_size > 0 && !hparams.is_swa(il));
    if (index && !llama_edgekv_access::is_listed(lctx, il)) {
        out->kind = LLAMA_EDGEKV_LAYER_INDEX;
        return true;
    }
    if (hparams.is_swa(il)) {
        const auto * windows = llama_edgekv_access::besides(lctx).windows;
        const auto * window  = windows ? llama_edgekv_access::layer(*windows, il) : nullptr;
        if (window && window->k && window->v) {
            put_rows(*windows, *window, *out);
        }
        out->kind = LLAMA_EDGEKV_LAYER_SWA;
        return true;
    }
    if (out->n_head_kv == 0 || (kv && !layer)) {
        out->kind = LLAMA_EDGEKV_LAYER_IDLE;
        return true;
    }
    const bool mla = hparams.is_mla() && layer && !layer->v;
    if (!layer || !layer->k || (!layer->v && !mla)) {
        return true;
    }
    if (static_cast<int>(layer->il) != il || llama_edgekv_access::is_guest(*kv)) {
        out->kind = LLAMA_EDGEKV_LAYER_SHARED;
        return true;
    }

    put_rows(*kv, *layer, *out);
    out->kind = index ? LLAMA_EDGEKV_LAYER_INDEX : mla ? LLAMA_EDGEKV_LAYER_MLA : LLAMA_EDGEKV_LAYER_ATTENTION;

    return true;
}

bool llama_edgekv_get_rope(const llama_context * lctx, llama_edgekv_rope * out) {
    const auto & hparams = lctx->get_model().hparams;
    const auto & cparams = lctx->get_cparams();

    *out = {};
    if (llama_edgekv_n_layer(lctx) == 0) {  // only the model's vocabulary is loaded
        return false;
    }
    *out = { static_cast<int>(hparams.n_rot()), cparams.rope_freq_base, cparams.rope_freq_scale };

    return hparams.rope_type != LLAMA_ROPE_TYPE_NONE;
}
