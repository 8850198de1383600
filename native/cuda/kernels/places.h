// Where rows lie. All strides are in bytes.
#pragma once

#include "kernels/layout.h"
#include "cuda/gpu.h"

namespace edgekv::gpu {

// Values of tokens and heads in f32, as ggml lays them out.
struct HeadRows {
    const char * data;  // token 0, head 0
    size_t stride_token, stride_head;

    EDGEKV_HOST_AND_DEVICE const float * at(size_t token, size_t head) const {
        return reinterpret_cast<const float *>(data + token * stride_token + head * stride_head);
    }
};

// Rows of K or V, in any type.
struct CellRows {
    char * data;  // cell 0, head 0
    size_t stride_cell, stride_head;

    EDGEKV_HOST_AND_DEVICE char * at(size_t cell, size_t head) const { return data + cell * stride_cell + head * stride_head; }
};

// Rows of some heads in another place.
struct PieceRows {
    CellRows of;  // its head 0 is `first_head`; data null: there is no such place
    int first_head, n_heads;
};

// The arena of a layer. A slot holds the rows of a page and head without gaps: K, and V from v_offset on.
struct PageSlots {
    char * data;  // null: there is none
    size_t slot_bytes, v_offset;
    const int32_t * slots;  // [n_head_kv][slots_stride], page p of stream s at s * pages_per_stream + p; negative: no slot
    size_t slots_stride;
    int page_tokens, pages_per_stream;

    // The row of a cell of a stream, null where its page has no slot. `offset`: 0 or v_offset.
    EDGEKV_HOST_AND_DEVICE char * row(int64_t stream, int64_t cell, int head, size_t offset, int row_bytes) const {
        if (data == nullptr) {
            return nullptr;
        }
        const int slot = slots[head * slots_stride + static_cast<size_t>(stream * pages_per_stream + cell / page_tokens)];
        return slot < 0 ? nullptr : data + static_cast<size_t>(slot) * slot_bytes + offset + static_cast<size_t>(cell % page_tokens) * row_bytes;
    }
};

}  // namespace edgekv::gpu
