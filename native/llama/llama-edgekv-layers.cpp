// The kind of a layer, and the size of its cache.
#include "llama-edgekv-access.h"

//
// call sites
//

// whether every layer has rows of its own, on the processor, that it may give back
static bool by_layer(const llama_model & model) {
    const auto & hparams = model.hparams;
    for (uint32_t il = 0; il < hparams.n_layer(); ++il) {
        if (hparams.is_recr(il)) {
            continue;
        }
        if (!hparams.has_kv(il) || ggml_backend_dev_type(model.dev_layer(il)) != GGML_BACKEND_DEVICE_TYPE_CPU) {
            return false;
        }
    }
    return !hparams.use_alibi && llama_edgekv_growing(ggml_backend_cpu_buffer_type()) != ggml_backend_cpu_buffer_type();
}

uint32_t llama_edgekv_kv_cells(const llama_model & model, uint32_t n_cells) {
    const auto * hooks   = llama_edgekv_get_hooks();
    const auto & hparams = model.hparams;
    // a compressed cache, and one with an index beside it, is not plain
    if (!hooks || hparams.is_mla() || hparams.indexer_head_size > 0) {
        return n_cells;
    }

    return hooks->kv_cells(n_cells, by_layer(model), hparams.n_ctx_train);
}

//
// exports
//

int llama_edgekv_n_layer(const llama_context * lctx) {
    return static_cast<int>(lctx->get_model().hparams.n_layer());
}

const ggml_tensor * llama_edgekv_get_weights(const llama_context * lctx, int i) {
    const auto & tensors = lctx->get_model().tensors_by_name;
    return i < static_cast<int>(tensors.size()) ? tensors[static_cast<size_t>(i)].second : nullptr;
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

//
// call site
//

static void set_type(ggml_tensor * rows, ggml_type type) {
    if (!rows || rows->type == type || !ggml_is_quantized(rows->type) || !ggml_is_quantized(type) || rows->ne[0] % ggml_blck_size(type) != 0) {
        return;
    }
    rows->type  = type;
    rows->nb[0] = ggml_type_size(type);
    rows->nb[1] = ggml_row_size(type, rows->ne[0]);
    rows->nb[2] = rows->nb[1]*rows->ne[1];
    rows->nb[3] = rows->nb[2]*rows->ne[2];
}

void llama_edgekv_type_rows(const llama_model & model, const llama_hparams & hparams, int il, ggml_tensor * k, ggml_tensor * v) {
    const auto * hooks = llama_edgekv_get_hooks();
    if (!hooks || !k || &hparams != &model.hparams) {  // the caches of an index have parameters of their own
        return;
    }
    int32_t k_type = k->type, v_type = v ? v->type : k->type;
    hooks->layer_types(il, static_cast<int>(hparams.n_layer_all), &k_type, &v_type);
    set_type(k, static_cast<ggml_type>(k_type));
    set_type(v, static_cast<ggml_type>(v_type));
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
