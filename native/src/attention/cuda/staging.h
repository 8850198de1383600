// K and V of a piece of one layer, some of its KV heads, on the device, or of two pieces in turn: for prompts, the stock attention reads them there. The tensors and the
// buffer are ggml's, because ggml's nodes use them.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

#include <cstddef>
#include <cstdint>

namespace edgekv {

class Staging {
public:
    // Each layer's heads in at most n_pieces, as even as possible. The largest has so many values of K and of V in a cell.
    struct Division {
        int n_pieces, n_buffers;  // 1 or 2 buffers
        int64_t k_values, v_values;
    };

    Staging() = default;
    Staging(const Staging &) = delete;
    Staging & operator=(const Staging &) = delete;
    ~Staging();

    // Reserves room for `division`. k, v: of any layer: their types, cells and streams count. false: out of memory
    bool reserve(ggml_backend_buffer_type_t buft, const ggml_tensor * k, const ggml_tensor * v, const Division & division);
    void release();

    int n_buffers() const { return count; }
    int n_pieces() const { return pieces; }
    size_t bytes() const;
    // A layer's piece; neighbours lie in different buffers if there are two.
    ggml_tensor * k(int layer, int piece = 0) const { return count ? keys[(layer * pieces + piece) % count] : nullptr; }
    ggml_tensor * v(int layer, int piece = 0) const { return count ? values[(layer * pieces + piece) % count] : nullptr; }

private:
    ggml_context * context = nullptr;
    ggml_backend_buffer_t buffer = nullptr;
    ggml_tensor * keys[2] = {};
    ggml_tensor * values[2] = {};
    int count = 0, pieces = 1;
};

}  // namespace edgekv
