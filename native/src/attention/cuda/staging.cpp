#include "attention/cuda/staging.h"

#include "ggml-alloc.h"

namespace edgekv {

Staging::~Staging() { release(); }

void Staging::release() {
    if (buffer) {
        ggml_backend_buffer_free(buffer);
    }
    if (context) {
        ggml_free(context);
    }
    buffer  = nullptr;
    context = nullptr;
    count   = 0;
}

size_t Staging::bytes() const { return buffer ? ggml_backend_buffer_get_size(buffer) : 0; }

bool Staging::reserve(ggml_backend_buffer_type_t buft, const ggml_tensor * k, const ggml_tensor * v, const Division & division) {
    const ggml_init_params params = { 8 * ggml_tensor_overhead(), nullptr, /*.no_alloc =*/ true };
    context = ggml_init(params);
    if (!context) {
        return false;
    }
    for (int i = 0; i < division.n_buffers; ++i) {
        keys[i]   = ggml_new_tensor_3d(context, k->type, division.k_values, k->ne[1], k->ne[2]);
        values[i] = ggml_new_tensor_3d(context, v->type, division.v_values, v->ne[1], v->ne[2]);
        ggml_format_name(keys[i], "edgekv_staged_k-%d", i);
        ggml_format_name(values[i], "edgekv_staged_v-%d", i);
    }
    buffer = ggml_backend_alloc_ctx_tensors_from_buft(context, buft);
    if (!buffer) {
        return false;
    }
    ggml_backend_buffer_clear(buffer, 0);  // values past the last token must be finite
    count  = division.n_buffers;
    pieces = division.n_pieces;
    return true;
}

}  // namespace edgekv
