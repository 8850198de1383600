// Rebuilds stale groups. A block serves one group of one head and keeps its 64 keys in shared memory as they are stored. The operations are those of
// kernels/sketch/sketch_build.h. Bound by the latency of the keys: 64 rows, from home over the link or from the arena.
//
// The launch that builds a group also stores keys of it. Those are not read where they are stored, so that no block waits for another: they are rounded
// once more from the floats in which they arrive.
#pragma once

#include "cuda/kernels/hot_rows.cuh"
#include "cuda/kernels/sketch_keys.cuh"
#include "cuda/kernels/store_device.h"
#include "cuda/kernels/store_round.cuh"

namespace edgekv::gpu {
namespace {

constexpr int kStoreThreads = 256;
constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kMaxDim = 256;
constexpr float kLevels = 7.0f;

// ---- arithmetic --------------------------------------------------------------------------------------------------------------

__device__ inline float least_of(float a, float b) { return a < b ? a : b; }
__device__ inline float most_of(float a, float b) { return a > b ? a : b; }
__device__ inline float magnitude(float x) { return most_of(x, __fsub_rn(0.0f, x)); }
__device__ inline float nearest(float x) { return __fsub_rn(__fadd_rn(x, 12582912.0f), 12582912.0f); }

__device__ inline float warp_most(float x) {
    for (int step = kWarp / 2; step > 0; step /= 2) {
        x = most_of(x, __shfl_xor_sync(kAllLanes, x, step));
    }
    return x;
}

// A tiny scale means that all values are zero.
__device__ inline float scale_of(float top, float levels) { return __fdiv_rn(top > 1e-30f ? top : 1e-30f, levels); }

// ---- a group -----------------------------------------------------------------------------------------------------------------

struct Ranges {
    float least[kStoreThreads * 4], most[kStoreThreads * 4];  // [slice of the cells][channel]
    float low[kMaxDim], per_step[kMaxDim];  // the values that the stored bytes stand for
};

// Finds each channel's least and most value. Threads share the cells in slices.
__device__ inline int find_ranges(CellType type, const char * rows, int row_stride, int head_dim, uint64_t valid, Ranges & ranges) {
    const int n_quads = head_dim / 4, n_slices = kStoreThreads / n_quads;
    const int quad = threadIdx.x % n_quads, slice = threadIdx.x / n_quads;
    if (slice < n_slices) {
        float least[4], most[4];
        bool any = false;
        for (int c = slice; c < kGroupCells; c += n_slices) {
            if ((valid >> c & 1) == 0) {
                continue;
            }
            float x[4];
            key_quad(type, rows + c * row_stride, quad, x);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                least[i] = any ? least_of(least[i], x[i]) : x[i];
                most[i] = any ? most_of(most[i], x[i]) : x[i];
            }
            any = true;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            ranges.least[slice * head_dim + 4 * quad + i] = any ? least[i] : INFINITY;
            ranges.most[slice * head_dim + 4 * quad + i] = any ? most[i] : -INFINITY;
        }
    }
    return n_slices;
}

// One warp builds the parameters of all channels.
__device__ inline void build_params(Ranges & ranges, int n_slices, int head_dim, const SketchLayout & layout, char * params) {
    constexpr int kEach = kMaxDim / kWarp;
    const int lane = threadIdx.x;
    float step[kEach], low[kEach];
    float top = 0.0f, reach = 0.0f;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int d = lane + j * kWarp;
        step[j] = low[j] = 0.0f;
        if (d < head_dim) {
            float most = ranges.most[d];
            low[j] = ranges.least[d];
            for (int s = 1; s < n_slices; ++s) {
                low[j] = least_of(low[j], ranges.least[s * head_dim + d]);
                most = most_of(most, ranges.most[s * head_dim + d]);
            }
            step[j] = __fmul_rn(__fsub_rn(most, low[j]), 1.0f / kLevels);
            top = most_of(top, step[j]);
            reach = most_of(reach, magnitude(low[j]));
        }
    }
    const float step_scale = scale_of(warp_most(top), 255.0f), low_scale = scale_of(warp_most(reach), 127.0f);
    const float to_step = __fdiv_rn(1.0f, step_scale), to_low = __fdiv_rn(1.0f, low_scale);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int d = lane + j * kWarp;
        const float n = least_of(nearest(__fmul_rn(step[j], to_step)), 255.0f);
        const float at = nearest(__fmul_rn(low[j], to_low));
        if (d < layout.padded) {
            const bool inside = d < head_dim;
            params[kParamHeader + d] = static_cast<char>(static_cast<uint8_t>(inside ? static_cast<int>(at) + 128 : 0));
            params[kParamHeader + layout.padded + d] = static_cast<char>(static_cast<uint8_t>(inside ? static_cast<int>(n) : 0));
        }
        if (d < head_dim) {
            const float s = __fmul_rn(n, step_scale);
            ranges.low[d] = __fmul_rn(at, low_scale);
            ranges.per_step[d] = s > 0.0f ? __fdiv_rn(1.0f, s) : 0.0f;
        }
    }
    if (lane < kParamHeader / 4) {
        reinterpret_cast<float *>(params)[lane] = lane == 0 ? step_scale : lane == 1 ? low_scale : 0.0f;
    }
}

// Builds the codes of a cell's 32 channels from 32 * chunk on. They refer to the values of the rounded parameters and so
// make up for that rounding.
__device__ inline void build_codes(CellType type, const char * row, int chunk, int head_dim, const Ranges & ranges, uint32_t * codes) {
#pragma unroll
    for (int q = 0; q < 8; ++q) {
        const int quad = 8 * chunk + q;
        codes[q] = 0;
        if (quad < head_dim / 4) {
            float x[4];
            key_quad(type, row, quad, x);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int d = 4 * quad + i;
                const float n = nearest(__fmul_rn(__fsub_rn(x[i], ranges.low[d]), ranges.per_step[d]));
                codes[q] |= static_cast<uint32_t>(static_cast<int>(least_of(most_of(n, 0.0f), kLevels))) << 8 * i;
            }
        }
    }
}


// The keys of a group that arrive with this launch: a bit for each cell, and in `tokens` whose key it is.
__device__ inline uint64_t find_arriving(const StoreArgs & args, const StaleGroup & stale, int (&tokens)[kGroupCells]) {
    if (threadIdx.x < kGroupCells) {
        tokens[threadIdx.x] = -1;
    }
    __syncthreads();
    const int64_t first = static_cast<int64_t>(stale.stream) * args.cells_per_stream + static_cast<int64_t>(stale.group) * kGroupCells;
    for (int token = threadIdx.x; token < args.n_tokens; token += kStoreThreads) {
        const int64_t cell = args.k.rows[token] - first;
        if (cell >= 0 && cell < kGroupCells) {
            tokens[cell] = token;
        }
    }
    __syncthreads();
    const int lane = threadIdx.x % kWarp;
    const uint64_t lower = __ballot_sync(kAllLanes, tokens[lane] >= 0), upper = __ballot_sync(kAllLanes, tokens[kWarp + lane] >= 0);
    return stale.valid & (upper << kWarp | lower);
}

// Rounds them into the group's rows.
__device__ inline void round_arriving(const StoreArgs & args, int head, uint64_t arriving, const int (&tokens)[kGroupCells], char * rows, int row_stride) {
    constexpr int kLoads = 4;  // in flight for each lane
    const int per_row = (args.head_dim + kWarp - 1) / kWarp, lane = threadIdx.x % kWarp;
    for (int first = threadIdx.x / kWarp * kLoads; first < kGroupCells * per_row; first += kStoreThreads / kWarp * kLoads) {
        float x[kLoads];
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
            const int cell = (first + j) / per_row, d = (first + j) % per_row * kWarp + lane;
            x[j] = (arriving >> cell & 1) != 0 && d < args.head_dim ? args.k.src.at(static_cast<size_t>(tokens[cell]), static_cast<size_t>(head))[d] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
            const int cell = (first + j) / per_row, d = (first + j) % per_row * kWarp + lane;
            if ((arriving >> cell & 1) != 0) {
                round_value(args.k.type, x[j], d, args.head_dim, rows + cell * row_stride);
            }
        }
    }
}

// The work of block `number` of the `n_blocks` that build.
__device__ inline void build_groups(const StoreArgs & args, const SketchLayout & layout, const KeyRows & key_rows, unsigned number, unsigned n_blocks) {
    EDGEKV_SHARED(Ranges, ranges);
    EDGEKV_SHARED(int[kGroupCells], tokens);
    const SketchBuild & build = args.build;
    const int n_heads = args.n_head_kv, dim = args.head_dim;
    const int64_t n_units = static_cast<int64_t>(*build.n_stale) * n_heads;

    for (int64_t unit = number; unit < n_units; unit += n_blocks) {
        const StaleGroup stale = build.stale[unit / n_heads];
        const int head = static_cast<int>(unit % n_heads);
        const int own_cell = stale.group * kGroupCells + static_cast<int>(threadIdx.x);
        if (build.hot.entries != nullptr && threadIdx.x < kGroupCells && own_cell < build.hot.n_cells) {
            forget_hot_row(build.hot, build.hot.row(head, stale.stream, own_cell));
        }
        char * const of_head = build.sketches.data + stale.stream * build.sketches.stream_bytes + head * layout.head_bytes;
        char * const codes = of_head + static_cast<size_t>(stale.group) * layout.code_bytes;
        char * const params = of_head + layout.params_offset + static_cast<size_t>(stale.group) * layout.param_bytes;
        if (stale.valid == 0) {
            for (int i = threadIdx.x; i < layout.code_bytes / 4; i += kStoreThreads) {
                reinterpret_cast<uint32_t *>(codes)[i] = 0;
            }
            for (int i = threadIdx.x; i < layout.param_bytes / 4; i += kStoreThreads) {
                reinterpret_cast<uint32_t *>(params)[i] = 0;
            }
            continue;
        }

        const uint64_t arriving = find_arriving(args, stale, tokens);
        char * const rows = load_keys(build.home, key_rows, stale.stream, head, stale.group * kGroupCells, stale.valid & ~arriving, shared_memory());
        if (arriving != 0) {
            round_arriving(args, head, arriving, tokens, rows, key_rows.row_stride);
            __syncthreads();
        }
        const int n_slices = find_ranges(build.home.type, rows, key_rows.row_stride, dim, stale.valid, ranges);
        __syncthreads();
        if (threadIdx.x < kWarp) {
            build_params(ranges, n_slices, dim, layout, params);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < kGroupCells * layout.n_dwords / 3; i += kStoreThreads) {
            const int cell = i % kGroupCells, chunk = i / kGroupCells;
            uint32_t c[8] = {};
            if ((stale.valid >> cell & 1) != 0) {
                build_codes(build.home.type, rows + cell * key_rows.row_stride, chunk, dim, ranges, c);
            }
            char * const at = codes + (cell / kVectorCells * layout.n_dwords + 3 * chunk) * kVectorBytes + cell % kVectorCells * 4;
            *reinterpret_cast<uint32_t *>(at) = c[0] | c[1] << 3 | (c[6] & 0x03030303u) << 6;
            *reinterpret_cast<uint32_t *>(at + kVectorBytes) = c[2] | c[3] << 3 | (c[6] & 0x04040404u) << 4 | (c[7] & 0x04040404u) << 5;
            *reinterpret_cast<uint32_t *>(at + 2 * kVectorBytes) = c[4] | c[5] << 3 | (c[7] & 0x03030303u) << 6;
        }
    }
}

}  // namespace
}  // namespace edgekv::gpu
