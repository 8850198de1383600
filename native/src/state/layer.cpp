#include "state/layer.h"

#include "kernels/decode/attend.h"
#include "state/state.h"

#include <algorithm>

namespace edgekv {

// Whether kernels serve the layer's heads.
static bool served_heads(const llama_edgekv_layer & llama) {
    const CellType k_type = cell_type(llama.k);
    return attend_supports({ llama.n_head, llama.n_head_kv, llama.head_dim_k, llama.head_dim_v, !llama.v, k_type, llama.v ? cell_type(llama.v) : k_type });
}

// EDGEKV_LAYER_HOOKED, or why the layer cannot be served, or why it is attended whole in every mode.
static edgekv_layer_state classify(const llama_edgekv_layer & llama) {
    if (!hooks_enabled()) {
        return EDGEKV_LAYER_DISABLED;
    }

    switch (llama.kind) {
        case LLAMA_EDGEKV_LAYER_ATTENTION:
        case LLAMA_EDGEKV_LAYER_MLA:       break;
        case LLAMA_EDGEKV_LAYER_SWA:
            if (!llama.k || !llama.host || llama.v_transposed) {
                return EDGEKV_LAYER_SWA;
            }
            break;
        case LLAMA_EDGEKV_LAYER_RECURRENT: return EDGEKV_LAYER_RECURRENT;
        case LLAMA_EDGEKV_LAYER_SHARED:    return EDGEKV_LAYER_SHARED;
        case LLAMA_EDGEKV_LAYER_IDLE:      return EDGEKV_LAYER_IDLE;
        case LLAMA_EDGEKV_LAYER_NONE:      return EDGEKV_LAYER_NO_CACHE;
        case LLAMA_EDGEKV_LAYER_INDEX:
            if (!llama.k) {
                return EDGEKV_LAYER_INDEX;
            }
            break;
    }

    if (!llama.host) {
        return EDGEKV_LAYER_DEVICE;
    }
    if (llama.v_transposed) {
        return EDGEKV_LAYER_V_TRANSPOSED;
    }
    if (!has_cell_type(llama.k) || (llama.v && !has_cell_type(llama.v))) {
        return EDGEKV_LAYER_CACHE_TYPE;
    }
    if (!served_heads(llama)) {
        return EDGEKV_LAYER_HEAD_DIM;
    }

    return llama.kind == LLAMA_EDGEKV_LAYER_SWA ? EDGEKV_LAYER_WINDOW : llama.alibi ? EDGEKV_LAYER_BIASED : EDGEKV_LAYER_HOOKED;
}

Layer look_at_layer(const llama_context * lctx, int il) {
    Layer layer;
    layer.il = il;
    llama_edgekv_get_layer(lctx, il, &layer.llama);

    const auto & llama = layer.llama;
    auto &       info = layer.info;
    info.state     = classify(llama);
    info.index     = -1;
    info.n_head    = llama.n_head;
    info.n_head_kv = llama.n_head_kv;
    info.head_dim  = llama.head_dim_k;
    info.k_type    = llama.k ? static_cast<int>(llama.k->type) : -1;
    info.v_type    = llama.v ? static_cast<int>(llama.v->type) : -1;

    return layer;
}

static bool storable(const ggml_tensor * cur, const ggml_tensor * idxs, const ggml_tensor * view) {
    const ggml_tensor * cache = view->view_src;

    // store_head() assumes that a token's heads lie side by side, and streams one after the other
    return cur->type == GGML_TYPE_F32 && cur->nb[0] == sizeof(float) && cur->nb[1] == cur->ne[0] * sizeof(float) &&
           idxs->type == GGML_TYPE_I64 && cur->ne[0] * cur->ne[1] == cache->ne[0] &&
           cache->nb[2] == cache->ne[1] * cache->nb[1];
}

bool storable(const llama_edgekv_store & args) {
    return storable(args.k_cur, args.k_idxs, args.k) && (!args.v || storable(args.v_cur, args.v_idxs, args.v));
}

bool attendable(const llama_edgekv_attend & args) {
    const ggml_tensor * q    = args.q;
    const ggml_tensor * k    = args.k;
    const ggml_tensor * v    = args.v;
    const ggml_tensor * mask = args.mask;

    const bool values = v_in_k(k, v) ? v->ne[0] < k->ne[0] && v->view_offs == k->view_offs && v->nb[1] == k->nb[1] && v->nb[2] == k->nb[2]
                                     : v->ne[0] == k->ne[0];

    const ggml_tensor * top_k = args.top_k;
    const bool lists = !top_k || (top_k->type == GGML_TYPE_I32 && top_k->nb[0] == sizeof(int32_t) && top_k->ne[1] == mask->ne[1] &&
                                  top_k->ne[3] == mask->ne[3] && top_k->ne[0] <= k->ne[2]);

    return args.plain && values && lists && q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) && q->ne[0] == k->ne[0] &&
           v->ne[2] == k->ne[2] && q->ne[1] % k->ne[1] == 0 &&
           (mask->type == GGML_TYPE_F16 || mask->type == GGML_TYPE_F32) && mask->ne[0] == k->ne[2] && mask->ne[3] == k->ne[3] &&
           mask->ne[1] * mask->ne[3] == q->ne[2] &&
           (!args.sinks || args.sinks->type == GGML_TYPE_F32);
}

}  // namespace edgekv
