// The caches of a context, tensor by tensor, for libedgekv's inspector.
#pragma once

#include "llama-edgekv.h"

#ifdef __cplusplus
extern "C" {
#endif

// what the tensors of a cache hold
enum llama_edgekv_content {
    LLAMA_EDGEKV_CONTENT_ALL        = 0,  // K and V of all tokens
    LLAMA_EDGEKV_CONTENT_WINDOW     = 1,  // of the newest tokens, or of a chunk
    LLAMA_EDGEKV_CONTENT_INDEX      = 2,  // keys of an index
    LLAMA_EDGEKV_CONTENT_COMPRESSED = 3,  // a row for several tokens
    LLAMA_EDGEKV_CONTENT_STATE      = 4,  // of a recurrent layer: a row for each sequence
};

struct llama_edgekv_cache {
    enum llama_edgekv_content holds;
    int il;
    const struct ggml_tensor * k;  // [n_embd_k, n_cells, n_stream]
    const struct ggml_tensor * v;  // null if there is none
};

// The i-th tensors of K and V that the context's caches own; false past the last.
LLAMA_API bool llama_edgekv_get_cache(const struct llama_context * lctx, int i, struct llama_edgekv_cache * out);

struct llama_edgekv_memory {
    int n_swa;  // tokens of a window
    bool chunks;  // windows begin at multiples of their size
    int n_listed;  // the most cells that an index lists for a token; 0: there is no index
    bool mla;
    size_t caches;  // bytes of all caches and states
    size_t compute;  // bytes of the buffers that graphs were reserved in, and of the outputs
};
LLAMA_API void llama_edgekv_get_memory(const struct llama_context * lctx, struct llama_edgekv_memory * out);

#ifdef __cplusplus
}
#endif
