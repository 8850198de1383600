#include "cuda/kernels/sample_device.h"

namespace edgekv::gpu {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kEach = 4;  // neighbouring cells per thread
constexpr int kChunkGroups = kSampleChunkGroups;
static_assert(kChunkGroups * kGroupCells == kThreads * kEach, "a chunk is a block's cells");
constexpr int kMaxHeads = 16;
constexpr unsigned kWalkThreads = kWalkCells / kEach;  // of a page
constexpr uint32_t kOne = 1u << kChanceBits;
constexpr double kShareSteps = 1099511627776.0;  // 2^40, for SampleTotals::missed

// The factor of a query head that turns exp(top - most) of a group into its part of p.
struct Norm {
    float most, factor;
};

// What all walks of a list share: the token's turn, and the floor under its cells' chances.
struct Draw {
    uint32_t turn, least;
};

// A chunk's sums over its cells.
struct Sums {
    uint32_t n_rows, n_visible, n_certain, unused;
};

struct Scratch {
    Norm * norms;  // [list][group]
    Draw * draws;  // [list]
    Sums * sums;   // [list][chunk]
};

static_assert(sizeof(Norm) == kSampleNormBytes && sizeof(Draw) == kSampleDrawBytes && sizeof(Sums) == kSampleSumsBytes, "sample_scratch()");

__host__ __device__ inline Scratch scratch_of(const SampleBatch & b) {
    const size_t n_lists = static_cast<size_t>(b.n_streams) * b.n_tokens * b.n_head_kv;
    const SampleScratch at = sample_scratch(n_lists, b.n_groups, b.group);
    return {reinterpret_cast<Norm *>(b.scratch), reinterpret_cast<Draw *>(b.scratch + at.draws), reinterpret_cast<Sums *>(b.scratch + at.sums)};
}

// The resolution of the list's KV head.
__device__ inline float resolution_of(const SampleBatch & b, int list) {
    const float own = b.resolutions != nullptr ? b.resolutions[list % b.n_head_kv] : 0.0f;
    return own > 0.0f ? own : b.resolution;
}

// One warp per query row finds the top and the sum of all cells that it sees, and for each list what its walks share.
__global__ void __launch_bounds__(kThreads) sample_norms(const SampleBatch b, int n_rows) {
    const int lane = threadIdx.x % kWarp, row = blockIdx.x * kWarps + threadIdx.x / kWarp;
    if (row >= n_rows) {
        return;
    }
    const float * const tops = b.shares.tops + row * b.shares.group_stride;
    const float * const sums = b.shares.sums + row * b.shares.group_stride;
    const float sink = b.sinks != nullptr ? b.sinks[row % (b.n_head_kv * b.group)] : -INFINITY;
    float most = sink;
    for (int i = lane; i < b.n_groups; i += kWarp) {
        most = fmaxf(most, tops[i]);
    }
    for (int step = kWarp / 2; step > 0; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(kAll, most, step));
    }
    float total = 0.0f;
    for (int i = lane; i < b.n_groups; i += kWarp) {
        total += tops[i] == -INFINITY ? 0.0f : sums[i] * expf(tops[i] - most);
    }
    for (int step = kWarp / 2; step > 0; step /= 2) {
        total += __shfl_xor_sync(kAll, total, step);
    }
    total += sink == -INFINITY ? 0.0f : expf(sink - most);
    if (lane == 0) {
        scratch_of(b).norms[row] = {most, total > 0.0f ? resolution_of(b, row / b.group) / (static_cast<float>(b.group) * total) : 0.0f};
    }
    if (row % b.group != 0) {
        return;
    }
    const int list = row / b.group, query = list / b.n_head_kv;
    int n_visible = 0;
    for (int i = lane; i < b.n_groups; i += kWarp) {
        const uint64_t seen = b.sight[static_cast<int64_t>(query) * b.sight_stride + i].visible;
        n_visible += __popc(static_cast<unsigned>(seen)) + __popc(static_cast<unsigned>(seen >> 32));
    }
    for (int step = kWarp / 2; step > 0; step /= 2) {
        n_visible += __shfl_xor_sync(kAll, n_visible, step);
    }
    if (lane == 0) {
        scratch_of(b).draws[list] = {page_turn(b.layer, list % b.n_head_kv, b.positions[b.k_idxs[query]]),
                                     static_cast<uint32_t>(least_chance(resolution_of(b, list), n_visible, b.exact_tokens))};
    }
}

// The chances of a thread's cells in steps of 2^-20, with and without the floor. All threads of the block construct it.
// `factors`: [kMaxHeads][kChunkGroups], shared.
struct Chunk {
    int list, first_group;  // of the block
    int group, cell;        // of the thread: its group, and its first cell
    Sight sight;            // of its cells, from bit 0 on

    __device__ Chunk(const SampleBatch & b, float * factors)
        : list(blockIdx.y), first_group(blockIdx.x * kChunkGroups), group(first_group + threadIdx.x * kEach / kGroupCells),
          cell(first_group * kGroupCells + threadIdx.x * kEach), sight{0, 0} {
        const Norm * const norms = scratch_of(b).norms + static_cast<int64_t>(list) * b.group;
        for (int i = threadIdx.x; i < b.group * kChunkGroups; i += kThreads) {
            const int g = i / kChunkGroups, of = first_group + i % kChunkGroups;
            float factor = 0.0f;
            if (of < b.n_groups) {
                const float top = b.shares.tops[(static_cast<int64_t>(list) * b.group + g) * b.shares.group_stride + of];
                factor = top == -INFINITY ? 0.0f : norms[g].factor * expf(top - norms[g].most);
            }
            factors[i] = factor;
        }
        __syncthreads();
        if (group < b.n_groups) {
            sight = b.sight[static_cast<int64_t>(list / b.n_head_kv) * b.sight_stride + group];
            sight.visible >>= cell % kGroupCells;
            sight.certain >>= cell % kGroupCells;
        }
    }

    __device__ void chances(const SampleBatch & b, const float * factors, uint32_t (&chance)[kEach], uint32_t (&by_share)[kEach]) const {
        if (group >= b.n_groups || (sight.visible & ((1u << kEach) - 1)) == 0) {
#pragma unroll
            for (int i = 0; i < kEach; ++i) {
                chance[i] = by_share[i] = 0;
            }
            return;
        }
        const uint32_t least = scratch_of(b).draws[list].least;
        float x[kEach] = {};
        for (int g = 0; g < b.group; ++g) {
            const float factor = factors[g * kChunkGroups + (group - first_group)];
            if (factor > 0.0f) {
                const uint2 pairs = *reinterpret_cast<const uint2 *>(
                    b.shares.cells + (static_cast<int64_t>(list) * b.group + g) * b.shares.cell_stride + cell);
                x[0] = fmaf(factor, __uint_as_float(pairs.x << 16), x[0]);
                x[1] = fmaf(factor, __uint_as_float(pairs.x & 0xffff0000u), x[1]);
                x[2] = fmaf(factor, __uint_as_float(pairs.y << 16), x[2]);
                x[3] = fmaf(factor, __uint_as_float(pairs.y & 0xffff0000u), x[3]);
            }
        }
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const bool certain = (sight.certain >> i & 1) != 0;
            const bool visible = (sight.visible >> i & 1) != 0;
            const uint32_t of_share = static_cast<uint32_t>(__float2int_rn(fminf(x[i], 1.0f) * static_cast<float>(kOne)));
            by_share[i] = visible ? of_share : 0u;
            chance[i] = !visible ? 0u : certain ? kOne : max(of_share, least);
        }
    }

    // A bit for each cell of the thread that is a row: the running sum of its page's chances, from the page's offset on, passes a whole number
    // there. All threads of the warp call it.
    __device__ uint32_t drawn(const SampleBatch & b, const uint32_t (&chance)[kEach]) const {
        uint32_t sum = 0;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            sum += chance[i];
        }
        uint32_t through = sum;  // of the page's threads up to this one
        for (unsigned step = 1; step < kWalkThreads; step *= 2) {
            const uint32_t other = __shfl_up_sync(kAll, through, step);
            through += threadIdx.x % kWalkThreads >= step ? other : 0u;
        }
        if (sum == 0) {
            return 0;
        }
        const int64_t stream = b.first_stream + list / (b.n_tokens * b.n_head_kv);
        const int32_t first = b.positions[stream * b.n_cells_stream + cell / kWalkCells * kWalkCells];
        uint32_t at = static_cast<uint32_t>(walk_offset(scratch_of(b).draws[list].turn, first)) + through - sum, rows = 0;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            rows |= static_cast<uint32_t>((at + chance[i]) >> kChanceBits != at >> kChanceBits) << i;
            at += chance[i];
        }
        return rows;
    }
};

// A block for each chunk of a list.
__global__ void __launch_bounds__(kThreads) sample_sums(const SampleBatch b) {
    EDGEKV_SHARED(float[kMaxHeads * kChunkGroups], factors);
    EDGEKV_SHARED(Sums[kWarps], warps);
    const Chunk chunk(b, factors);
    uint32_t chance[kEach], by_share[kEach];
    chunk.chances(b, factors, chance, by_share);
    uint32_t n_rows = static_cast<uint32_t>(__popc(chunk.drawn(b, chance))), n_visible = 0, n_certain = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        n_visible += static_cast<uint32_t>(chunk.sight.visible >> i & 1);
        n_certain += chance[i] == kOne ? 1u : 0u;
    }
    n_rows = __reduce_add_sync(kAll, n_rows);
    n_visible = __reduce_add_sync(kAll, n_visible);
    n_certain = __reduce_add_sync(kAll, n_certain);
    if (threadIdx.x % kWarp == 0) {
        warps[threadIdx.x / kWarp] = {n_rows, n_visible, n_certain, 0};
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        Sums all = {0, 0, 0, 0};
        for (int w = 0; w < kWarps; ++w) {
            all = {all.n_rows + warps[w].n_rows, all.n_visible + warps[w].n_visible, all.n_certain + warps[w].n_certain, 0};
        }
        scratch_of(b).sums[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = all;
    }
}

// The same blocks list the rows, behind those of the blocks before.
__global__ void __launch_bounds__(kThreads) sample_emit(const SampleBatch b) {
    EDGEKV_SHARED(float[kMaxHeads * kChunkGroups], factors);
    EDGEKV_SHARED(uint32_t[kWarps], warps);
    EDGEKV_SHARED(uint32_t[kWarps], missed_of_warps);
    EDGEKV_SHARED(unsigned long long[3], before_block);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const Sums * const sums = scratch_of(b).sums + static_cast<int64_t>(blockIdx.y) * gridDim.x;
    const bool last = blockIdx.x + 1 == gridDim.x;

    if (warp == 0) {
        unsigned long long mine[3] = {0, 0, 0};
        for (unsigned i = lane; i < blockIdx.x; i += kWarp) {
            mine[0] += sums[i].n_rows;
            mine[1] += sums[i].n_visible;
            mine[2] += sums[i].n_certain;
        }
#pragma unroll
        for (int k = 0; k < 3; ++k) {
            for (int step = kWarp / 2; step > 0; step /= 2) {
                mine[k] += __shfl_xor_sync(kAll, mine[k], step);
            }
            if (lane == 0) {
                before_block[k] = mine[k];
            }
        }
    }
    const Chunk chunk(b, factors);  // its barrier shows before_block to all threads
    uint32_t chance[kEach], by_share[kEach];
    chunk.chances(b, factors, chance, by_share);
    const uint32_t drawn = chunk.drawn(b, chance), n_drawn = static_cast<uint32_t>(__popc(drawn));
    uint32_t through = n_drawn;  // of the warp's threads up to this one
    for (unsigned step = 1; step < kWarp; step *= 2) {
        const uint32_t other = __shfl_up_sync(kAll, through, step);
        through += lane >= static_cast<int>(step) ? other : 0u;
    }
    if (lane == kWarp - 1) {
        warps[warp] = through;
    }
    __syncthreads();
    int64_t row = static_cast<int64_t>(before_block[0]) + (through - n_drawn);
    for (int w = 0; w < warp; ++w) {
        row += warps[w];
    }

    int32_t * const rows = b.rows + static_cast<int64_t>(chunk.list) * b.stride;
    float * const weights = b.weights + static_cast<int64_t>(chunk.list) * b.stride;
    uint32_t missed = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        if ((drawn >> i & 1) != 0) {
            rows[row] = chunk.cell + i;
            weights[row] = __fdiv_rn(static_cast<float>(kOne), static_cast<float>(chance[i]));
            ++row;
        } else {
            missed += by_share[i];
        }
    }
    missed = __reduce_add_sync(kAll, missed);  // of a warp at most 2^27
    if (lane == 0) {
        missed_of_warps[warp] = missed;
    }
    __syncthreads();
    if (threadIdx.x == 0 && b.totals != nullptr) {
        unsigned long long all = 0;
        for (int w = 0; w < kWarps; ++w) {
            all += missed_of_warps[w];
        }
        if (all != 0) {
            atomicAdd(&b.totals[chunk.list % b.n_head_kv].missed,
                      static_cast<unsigned long long>(static_cast<double>(all) * (kShareSteps / kOne) / resolution_of(b, chunk.list)));
        }
    }
    if (last && threadIdx.x == 0) {
        const Sums own = sums[blockIdx.x];
        b.n_rows[chunk.list] = static_cast<int32_t>(before_block[0] + own.n_rows);
        if (b.totals != nullptr) {
            SampleTotals & totals = b.totals[chunk.list % b.n_head_kv];
            atomicAdd(&totals.n_tokens, 1ull);
            atomicAdd(&totals.n_visible, before_block[1] + own.n_visible);
            atomicAdd(&totals.n_certain, before_block[2] + own.n_certain);
            atomicAdd(&totals.n_covered, 1ull);
        }
    }
}

}  // namespace

void launch_sample(const SampleBatch & b, Stream stream) {
    const int n_lists = b.n_streams * b.n_tokens * b.n_head_kv, n_rows = n_lists * b.group;
    launch(sample_norms, {static_cast<unsigned>((n_rows + kWarps - 1) / kWarps)}, kThreads, 0, stream, b, n_rows);
    const Grid grid = {static_cast<unsigned>(sample_chunks(b.n_groups)), static_cast<unsigned>(n_lists)};
    launch(sample_sums, grid, kThreads, 0, stream, b);
    launch(sample_emit, grid, kThreads, 0, stream, b);
}

}  // namespace edgekv::gpu
