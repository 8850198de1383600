// One model layer: the glue's description of it, and whether it is served.
#pragma once

#include "kernels/layout.h"
#include "edgekv.h"
#include "llama-edgekv.h"

#include <cstddef>

namespace edgekv {

struct Layer {
    int il = 0;
    edgekv_layer info = {};
    llama_edgekv_layer llama = {};
    bool refused[2] = {};  // [0: steps, 1: prompts] the layer's nodes got no memory

    bool slides() const { return llama.kind == LLAMA_EDGEKV_LAYER_SWA; }  // its rows lie in another cache, with other cells
    bool v_in_k() const { return llama.k && !llama.v; }  // the first head_dim_v channels of a row of K are its V
    bool listed() const { return llama.kind == LLAMA_EDGEKV_LAYER_INDEX && llama.k; }  // an index lists the cells that each query attends
    bool whole() const { return info.state == EDGEKV_LAYER_WINDOW || info.state == EDGEKV_LAYER_BIASED; }  // attended whole in every mode
    void leave_whole() { info.state = info.state == EDGEKV_LAYER_BIASED ? EDGEKV_LAYER_ALIBI : EDGEKV_LAYER_SWA; }  // leaves it to stock nodes
    bool serves() const { return info.state == EDGEKV_LAYER_HOOKED || info.state == EDGEKV_LAYER_NO_MEMORY; }
    void had_memory(bool had, bool of_prompt) {  // whether the layer's nodes got memory in the graph that is being built
        refused[of_prompt] = !had;
        info.state = refused[0] || refused[1] ? EDGEKV_LAYER_NO_MEMORY : EDGEKV_LAYER_HOOKED;
    }

    // a row's bytes, for one head of one cell
    size_t k_row_bytes() const { return ggml_row_size(llama.k->type, llama.head_dim_k); }
    size_t v_row_bytes() const { return v_in_k() ? 0 : ggml_row_size(llama.v->type, llama.head_dim_v); }
};

Layer look_at_layer(const llama_context * lctx, int il);  // info.index is -1

inline bool has_cell_type(const ggml_tensor * cache) {
    return cache->type == GGML_TYPE_F16 || cache->type == GGML_TYPE_Q8_0 || cache->type == GGML_TYPE_Q4_0;
}
inline CellType cell_type(const ggml_tensor * cache) {
    return cache->type == GGML_TYPE_Q8_0 ? CellType::q8_0 : cache->type == GGML_TYPE_Q4_0 ? CellType::q4_0 : CellType::f16;
}

inline MaskType mask_type(const ggml_tensor * mask) { return mask->type == GGML_TYPE_F16 ? MaskType::f16 : MaskType::f32; }

// The first stream of a view of the cache.
inline int first_stream(const ggml_tensor * view) { return static_cast<int>(view->view_offs / view->nb[3]); }

// Whether a node of ours can serve the tensors of a graph. Both planes ask.
bool storable(const llama_edgekv_store & args);
bool attendable(const llama_edgekv_attend & args);

// Whether V is a view of rows of K.
inline bool v_in_k(const ggml_tensor * k, const ggml_tensor * v) {
    return k->view_src == v->view_src;
}

}  // namespace edgekv
