// Rebuilds stale groups. A block serves one group of one head and keeps its 64 keys, or half of them at a time, in shared memory as they are stored. The
// operations are those of kernels/sketch/sketch_build.h. Bound by the latency of the keys: 64 rows, from home over the link or from the arena.
#pragma once

#include "cuda/kernels/arriving_keys.cuh"
#include "cuda/kernels/hot_rows.cuh"

namespace edgekv::gpu {
namespace {

constexpr int kMaxDim = 256;
constexpr float kLevels = 7.0f;

// ---- arithmetic --------------------------------------------------------------------------------------------------------------

__device__ inline float least_of(float a, float b) { return a < b ? a : b; }
__device__ inline float most_of(float a, float b) { return a > b ? a : b; }
__device__ inline float magnitude(float x) { return most_of(x, __fsub_rn(0.0f, x)); }
__device__ inline float nearest(float x) { return __fsub_rn(__fadd_rn(x, 12582912.0f), 12582912.0f); }

__device__ inline float warp_most(float x) { return over_warp(x, [](float a, float b) { return most_of(a, b); }); }

// A tiny scale means that all values are zero.
__device__ inline float scale_of(float top, float levels) { return __fdiv_rn(top > 1e-30f ? top : 1e-30f, levels); }

// ---- a group -----------------------------------------------------------------------------------------------------------------

struct Ranges {
    float *least, *most;     // [slice of the cells][channel]
    float *low, *per_step;   // [channel] the values that the stored bytes stand for

    __device__ Ranges(char * at, int head_dim)
        : least(reinterpret_cast<float *>(at)), most(least + 4 * blockDim.x), low(most + 4 * blockDim.x), per_step(low + head_dim) {}
    static size_t bytes_of(unsigned n_threads, int head_dim) { return (size_t{8} * n_threads + size_t{2} * head_dim) * sizeof(float); }
};

// Finds each channel's least and most value in n_rows cells, from `part` on, and in those before. Threads share the cells in slices.
__device__ inline int find_ranges(CellType type, const char * rows, const KeyRows & key_rows, int part, int head_dim, uint64_t valid, const Ranges & ranges) {
    const int n_quads = head_dim / 4, n_slices = static_cast<int>(blockDim.x) / n_quads;
    const int quad = threadIdx.x % n_quads, slice = threadIdx.x / n_quads;
    if (slice < n_slices) {
        const int at = slice * head_dim + 4 * quad;
        float least[4], most[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            least[i] = part == 0 ? INFINITY : ranges.least[at + i];
            most[i] = part == 0 ? -INFINITY : ranges.most[at + i];
        }
        for (int c = slice; c < key_rows.n_rows; c += n_slices) {
            if ((valid >> (part + c) & 1) == 0) {
                continue;
            }
            float x[4];
            key_quad(type, rows + c * key_rows.row_stride, quad, x);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                least[i] = least_of(least[i], x[i]);
                most[i] = most_of(most[i], x[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            ranges.least[at + i] = least[i];
            ranges.most[at + i] = most[i];
        }
    }
    return n_slices;
}

// One warp builds the parameters of all channels.
__device__ inline void build_params(const Ranges & ranges, int n_slices, int head_dim, const SketchLayout & layout, char * params) {
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

// Writes the codes of n_rows cells from `part` on.
__device__ inline void build_cells(const StoreArgs & args, const char * rows, const KeyRows & key_rows, int part, uint64_t valid, const Ranges & ranges,
                                   const SketchLayout & layout, char * codes) {
    for (int i = threadIdx.x; i < key_rows.n_rows * layout.n_dwords / 3; i += blockDim.x) {
        const int row = i % key_rows.n_rows, cell = part + row, chunk = i / key_rows.n_rows;
        uint32_t c[8] = {};
        if ((valid >> cell & 1) != 0) {
            build_codes(args.build.home.type, rows + row * key_rows.row_stride, chunk, args.head_dim, ranges, c);
        }
        char * const at = codes + (cell / kVectorCells * layout.n_dwords + 3 * chunk) * kVectorBytes + cell % kVectorCells * 4;
        *reinterpret_cast<uint32_t *>(at) = c[0] | c[1] << 3 | (c[6] & 0x03030303u) << 6;
        *reinterpret_cast<uint32_t *>(at + kVectorBytes) = c[2] | c[3] << 3 | (c[6] & 0x04040404u) << 4 | (c[7] & 0x04040404u) << 5;
        *reinterpret_cast<uint32_t *>(at + 2 * kVectorBytes) = c[4] | c[5] << 3 | (c[7] & 0x03030303u) << 6;
    }
}

// Shared memory of a block that builds.
inline size_t build_shared_bytes(const KeyRows & rows, unsigned n_threads, int head_dim) {
    return Ranges::bytes_of(n_threads, head_dim) + sizeof(ArrivingTokens) + key_shared_bytes(rows);
}

// A block builds a stale group's sketch of one head.
__device__ inline void build_group(const StoreArgs & args, const SketchLayout & layout, const KeyRows & key_rows, const StaleGroup & stale, int head) {
    const SketchBuild & build = args.build;
    const int dim = args.head_dim, own_cell = stale.group * kGroupCells + static_cast<int>(threadIdx.x);
    if (build.hot.entries != nullptr && threadIdx.x < kGroupCells && own_cell < build.hot.n_cells) {
        forget_hot_row(build.hot, build.hot.row(head, stale.stream, own_cell));
    }
    const Ranges ranges(shared_memory(), dim);
    auto & tokens = *reinterpret_cast<ArrivingTokens *>(ranges.per_step + dim);
    char * const loaded = reinterpret_cast<char *>(&tokens + 1);
    char * const of_head = build.sketches.data + stale.stream * build.sketches.stream_bytes + head * layout.head_bytes;
    char * const codes = of_head + static_cast<size_t>(stale.group) * layout.code_bytes;
    char * const params = of_head + layout.params_offset + static_cast<size_t>(stale.group) * layout.param_bytes;
    if (stale.valid == 0) {
        for (int i = threadIdx.x; i < layout.code_bytes / 4; i += blockDim.x) {
            reinterpret_cast<uint32_t *>(codes)[i] = 0;
        }
        for (int i = threadIdx.x; i < layout.param_bytes / 4; i += blockDim.x) {
            reinterpret_cast<uint32_t *>(params)[i] = 0;
        }
        return;
    }

    const uint64_t arriving = find_arriving(args, stale.stream, stale.group, stale.valid, tokens);
    const auto load = [&](int part) {
        return load_and_round(args, build.home, key_rows, {stale.stream, head, stale.group, part}, stale.valid, arriving, tokens, loaded);
    };
    const char * rows = nullptr;
    int n_slices = 0;
    for (int part = 0; part < kGroupCells; part += key_rows.n_rows) {
        rows = load(part);
        n_slices = find_ranges(build.home.type, rows, key_rows, part, dim, stale.valid, ranges);
    }
    __syncthreads();
    if (threadIdx.x < kWarp) {
        build_params(ranges, n_slices, dim, layout, params);
    }
    __syncthreads();
    for (int part = kGroupCells - key_rows.n_rows; part >= 0; part -= key_rows.n_rows) {  // the last part still lies there
        if (part + key_rows.n_rows < kGroupCells) {
            rows = load(part);
        }
        build_cells(args, rows, key_rows, part, stale.valid, ranges, layout, codes);
    }
}

// How many blocks build n_expected groups.
inline unsigned n_builders(const StoreArgs & args) {
    constexpr int64_t kMostBuilders = 2048;
    const int64_t n_units = static_cast<int64_t>(args.build.n_expected) * args.n_head_kv;
    return args.build.n_stale == nullptr ? 0u : static_cast<unsigned>(n_units < 1 ? 1 : n_units < kMostBuilders ? n_units : kMostBuilders);
}

}  // namespace
}  // namespace edgekv::gpu
