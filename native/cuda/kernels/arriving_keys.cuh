// Keys of a group that a launch stores and reads. They are not read where they are stored, so that no block waits for another: they are rounded once more
// from the floats in which they arrive.
#pragma once

#include "cuda/kernels/sketch_keys.cuh"
#include "cuda/kernels/store_device.h"
#include "cuda/kernels/store_round.cuh"

namespace edgekv::gpu {
namespace {


using ArrivingTokens = int[kGroupCells];  // whose key a cell gets

// Cells of a group, from `part` on.
struct GroupPart {
    int stream, head, group, part;
};

// Those of the `wanted` cells of a group whose keys arrive with this launch, and in `tokens` whose they are. `stream` is counted as the store's. A block of at
// least 64 threads calls it.
__device__ inline uint64_t find_arriving(const StoreArgs & args, int stream, int group, uint64_t wanted, ArrivingTokens & tokens) {
    if (args.n_tokens == 0) {
        return 0;
    }
    if (threadIdx.x < kGroupCells) {
        tokens[threadIdx.x] = -1;
    }
    __syncthreads();
    const int64_t first = static_cast<int64_t>(stream) * args.cells_per_stream + static_cast<int64_t>(group) * kGroupCells;
    for (int token = threadIdx.x; token < args.n_tokens; token += blockDim.x) {
        const int64_t cell = args.k.rows[token] - first;
        if (cell >= 0 && cell < kGroupCells) {
            tokens[cell] = token;
        }
    }
    __syncthreads();
    const int lane = threadIdx.x % kWarp;
    const uint64_t lower = __ballot_sync(kAllLanes, tokens[lane] >= 0), upper = __ballot_sync(kAllLanes, tokens[kWarp + lane] >= 0);
    return wanted & (upper << kWarp | lower);
}

// Rounds them into the rows of n_rows cells from `part` on.
__device__ inline void round_arriving(const StoreArgs & args, int head, int part, uint64_t arriving, const ArrivingTokens & tokens, char * rows,
                                      const KeyRows & key_rows) {
    constexpr int kLoads = 4;  // in flight for each lane
    const int per_row = (args.head_dim + kWarp - 1) / kWarp, lane = threadIdx.x % kWarp, n_warps = static_cast<int>(blockDim.x) / kWarp;
    for (int first = threadIdx.x / kWarp * kLoads; first < key_rows.n_rows * per_row; first += n_warps * kLoads) {
        float x[kLoads];
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
            const int cell = part + (first + j) / per_row, d = (first + j) % per_row * kWarp + lane;
            x[j] = (arriving >> cell & 1) != 0 && d < args.head_dim ? args.k.src.at(static_cast<size_t>(tokens[cell]), static_cast<size_t>(head))[d] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
            const int row = (first + j) / per_row, d = (first + j) % per_row * kWarp + lane;
            if ((arriving >> (part + row) & 1) != 0) {
                round_value(args.k.type, x[j], d, args.head_dim, rows + row * key_rows.row_stride);
            }
        }
    }
}

// The rows of a part's `wanted` cells, those that arrive among them. The part's stream is counted as home's. All threads of the block call it, and see them.
__device__ inline char * load_and_round(const StoreArgs & args, const SketchHome & home, const KeyRows & key_rows, const GroupPart & of, uint64_t wanted,
                                        uint64_t arriving, const ArrivingTokens & tokens, char * shared) {
    char * const rows = load_keys(home, key_rows, of.stream, of.head, of.group * kGroupCells + of.part, (wanted & ~arriving) >> of.part, shared);
    if (arriving != 0) {
        round_arriving(args, of.head, of.part, arriving, tokens, rows, key_rows);
        __syncthreads();
    }
    return rows;
}

}  // namespace
}  // namespace edgekv::gpu
