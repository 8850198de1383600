// K and V of one layer on the device, or of two in turn: for prompts, the stock attention reads them there. The tensors and the
// buffer are ggml's, because ggml's nodes use them.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

#include <cstddef>

namespace edgekv {

class Staging {
public:
    Staging() = default;
    Staging(const Staging &) = delete;
    Staging & operator=(const Staging &) = delete;
    ~Staging();

    // Reserves room for n_buffers (1 or 2) layers shaped like these tensors, the widest of the context. false: out of memory
    bool reserve(ggml_backend_buffer_type_t buft, const ggml_tensor * k, const ggml_tensor * v, int n_buffers);
    void release();
    static size_t bytes(const ggml_tensor * k, const ggml_tensor * v, int n_buffers);

    int n_buffers() const { return count; }
    size_t bytes() const;
    ggml_tensor * k(int row) const { return count ? keys[row % count] : nullptr; }
    ggml_tensor * v(int row) const { return count ? values[row % count] : nullptr; }

private:
    ggml_context * context = nullptr;
    ggml_backend_buffer_t buffer = nullptr;
    ggml_tensor * keys[2] = {};
    ggml_tensor * values[2] = {};
    int count = 0;
};

}  // namespace edgekv
