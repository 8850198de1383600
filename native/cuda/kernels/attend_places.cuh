// The work of each block and warp, and the place of its rows.
#pragma once

#include "cuda/kernels/attend_device.h"
#include "cuda/kernels/attend_load.cuh"
#include "cuda/kernels/hot_rows.h"
#include "cuda/kernels/attend_workspace.h"

namespace edgekv::gpu {
namespace {

struct Unit {
    int token, first_head;  // of the group
    bool valid;
};

__device__ __forceinline__ Unit unit_of(const AttendProblem & p, const Units & units, int heads, int z, int in_block) {
    const bool lists = has_lists(p);
    const int zs = lists ? static_cast<int>(gridDim.z)/p.n_tokens : 1;  // blocks that one token's units need
    const int unit = (lists ? z%zs : z)*units.n_together + in_block;
    return {lists ? z/zs : unit/units.n_chunks, unit%units.n_chunks*heads, unit < units.n_units};
}

struct Strip {
    const char *k, *v;
    int cell;    // of the view, the strip's first
    int dense;   // rows without gaps, as in a slot
};

// Looks in the arena, then in the ring, then at home.
__device__ __forceinline__ Strip strip_at(const AttendProblem & p, const Ring & ring, int kv, int page, int in_page) {
    const char * slot_data = nullptr;
    const int slot = p.arena.data != nullptr ? p.arena.slots[static_cast<size_t>(kv)*p.arena.slots_stride + page] : -1;
    if (slot >= 0) {
        slot_data = p.arena.data + static_cast<size_t>(slot)*p.arena.slot_bytes;
    } else if (ring.data != nullptr && page >= ring.first_page && page < ring.end_page) {
        const size_t at = static_cast<size_t>(kv)*(ring.end_page - ring.first_page) + (page - ring.first_page);
        slot_data = ring.held[at] != 0 ? ring.data + at*p.arena.slot_bytes : nullptr;
    }
    const int cell = page*p.page_tokens + in_page;
    if (slot_data != nullptr) {
        return {slot_data + in_page*row_bytes(p.k_type, p.head_dim),
                slot_data + p.arena.v_offset + in_page*row_bytes(p.v_type, p.head_dim), cell, 1};
    }
    return {p.k + static_cast<size_t>(cell)*p.k_stride_cell + static_cast<size_t>(kv)*p.k_stride_head,
            p.v + static_cast<size_t>(cell)*p.v_stride_cell + static_cast<size_t>(kv)*p.v_stride_head, cell, 0};
}

// A row of a list: in its page's slot, among the copies of rows, or else at home. `at`: its place among all lists.
struct Place {
    const char *k, *v;
};

__device__ __forceinline__ Place place_of(const AttendProblem & p, int kv, size_t at, bool * home) {
    const int cell = p.rows.cells[at];
    const int page = cell/p.page_tokens;
    const int slot = p.arena.data != nullptr ? p.arena.slots[static_cast<size_t>(kv)*p.arena.slots_stride + page] : -1;
    const int copy = slot < 0 && p.copies.data != nullptr ? p.copies.slots[at] : -1;
    *home = slot < 0 && copy < 0;
    if (slot >= 0) {
        const char * data = p.arena.data + static_cast<size_t>(slot)*p.arena.slot_bytes;
        const int in_page = cell - page*p.page_tokens;
        return {data + in_page*row_bytes(p.k_type, p.head_dim), data + p.arena.v_offset + in_page*row_bytes(p.v_type, p.head_dim)};
    }
    if (copy >= 0) {
        const char * data = p.copies.data + static_cast<size_t>(copy & (kBrought - 1))*p.copies.slot_bytes;
        return {data, data + p.copies.v_offset};
    }
    return {p.k + static_cast<size_t>(cell)*p.k_stride_cell + static_cast<size_t>(kv)*p.k_stride_head,
            p.v + static_cast<size_t>(cell)*p.v_stride_cell + static_cast<size_t>(kv)*p.v_stride_head};
}

__device__ __forceinline__ float bias_of(const AttendProblem & p, int token, int cell) {
    if (cell >= p.n_cells) {
        return -INFINITY;
    }
    const char * row = p.mask + static_cast<size_t>(token)*p.mask_stride_token;
    switch (p.mask_type) {
        case MaskType::f16: return __half2float(__ushort_as_half(__ldg(reinterpret_cast<const unsigned short *>(row) + cell)));
        case MaskType::f32: return __ldg(reinterpret_cast<const float *>(row) + cell);
        default: return 0.0f;
    }
}

}  // namespace
}  // namespace edgekv::gpu
