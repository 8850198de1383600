// The copies of the rows that a launch lists.
#pragma once

#include "cuda/kernels/hot_rows.cuh"
#include "cuda/kernels/move_pages.cuh"

namespace edgekv::gpu {
namespace {

// A row that a block brings.
struct Brought {
    int32_t cell, slot;
};

// The copy of a listed row, as KeptRows::slots has it.
__device__ inline int32_t copy_of(const KeptRows & kept, int head, int64_t stream, int cell, uint32_t launch) {
    if (kept.open[stream * kept.n_groups + cell / kGroupCells] != 0 || kept.arena.row(stream, cell, head, 0, kept.k.row_bytes) != nullptr) {
        return -1;
    }
    return place_hot_row(kept.hot, kept.hot.row(head, stream, cell), launch);
}

// Copies rows from home, a warp K or V of a row at a time. All threads of the block call it. Bound by the link's latency.
__device__ inline void bring_rows(const KeptRows & kept, int head, int64_t stream, const Brought * rows, int n_rows) {
    for (int i = threadIdx.x / kWarp; i < 2 * n_rows; i += blockDim.x / kWarp) {
        const Brought & row = rows[i / 2];
        const HomeRows & home = i % 2 != 0 ? kept.v : kept.k;
        char * const to = kept.hot.data + static_cast<size_t>(row.slot) * kept.hot.stride + (i % 2 != 0 ? kept.hot.v_offset : 0);
        char * const from = home.of.at(static_cast<size_t>(row.cell), static_cast<size_t>(head)) + stream * home.stride_stream;
        move_pages::copy_rows({to, 0}, {nullptr, 0}, {from, 0}, static_cast<unsigned>(home.row_bytes), 1, threadIdx.x % kWarp);
        if (threadIdx.x % kWarp == 0) {
            reads_home(static_cast<size_t>(home.row_bytes));
        }
    }
}

}  // namespace
}  // namespace edgekv::gpu
