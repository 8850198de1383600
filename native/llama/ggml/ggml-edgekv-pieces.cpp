#include "ggml/ggml-edgekv-pieces.h"

#include <atomic>

static std::atomic<edgekv_pieces> g_pieces{nullptr};

void edgekv_set_pieces(edgekv_pieces pieces) { g_pieces.store(pieces, std::memory_order_release); }

bool edgekv_copy_pieces(const ggml_tensor * src, ggml_tensor * dst) {
    const edgekv_pieces pieces = g_pieces.load(std::memory_order_acquire);
    const size_t n_bytes = ggml_nbytes(src);
    const char * data = static_cast<const char *>(src->data);
    if (!pieces || pieces(src->buffer, data, n_bytes) == n_bytes) {
        return false;
    }
    for (size_t at = 0, n = 0; at < n_bytes; at += n) {
        n = pieces(src->buffer, data + at, n_bytes - at);
        ggml_backend_tensor_set(dst, data + at, at, n);
    }
    return true;
}
