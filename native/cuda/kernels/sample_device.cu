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

struct Scratch {
    Norm * norms;        // [list][group]
    Draw * draws;        // [list]
    uint32_t * n_begun;  // chunks of the launch
    uint32_t * counts;   // [list][chunk] one more than its rows; 0: not counted yet
    size_t n_counts;     // those and n_begun, which lies before them
};

static_assert(sizeof(Norm) == kSampleNormBytes && sizeof(Draw) == kSampleDrawBytes && sizeof(uint32_t) == kSampleCountBytes, "sample_scratch()");

__host__ __device__ inline Scratch scratch_of(const SampleBatch & b) {
    const size_t n_lists = static_cast<size_t>(b.n_streams) * b.n_tokens * b.n_head_kv;
    const SampleScratch at = sample_scratch(n_lists, b.n_groups, b.group);
    uint32_t * const counts = reinterpret_cast<uint32_t *>(b.scratch + at.counts);
    return {reinterpret_cast<Norm *>(b.scratch), reinterpret_cast<Draw *>(b.scratch + at.draws), counts, counts + 1, at.n_counts};
}

// The resolution of the list's KV head.
__device__ inline float resolution_of(const SampleBatch & b, int list) {
    const float own = b.resolutions != nullptr ? b.resolutions[list % b.n_head_kv] : 0.0f;
    return own > 0.0f ? own : b.resolution;
}

// One warp per query row finds the top and the sum of all cells that it sees, and for each list what its walks share. Clears the counts.
__global__ void __launch_bounds__(kThreads) sample_norms(const SampleBatch b, int n_rows) {
    const Scratch scratch = scratch_of(b);
    for (size_t i = blockIdx.x * kThreads + threadIdx.x; i < scratch.n_counts; i += gridDim.x * kThreads) {
        scratch.n_begun[i] = 0;
    }
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
        scratch.norms[row] = {most, total > 0.0f ? resolution_of(b, row / b.group) / (static_cast<float>(b.group) * total) : 0.0f};
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
        scratch.draws[list] = {page_turn(b.layer, list % b.n_head_kv, b.positions[b.k_idxs[query]]),
                               static_cast<uint32_t>(least_chance(resolution_of(b, list), n_visible, b.exact_tokens))};
    }
}

// The chances of a thread's cells in steps of 2^-20, with and without the floor. All threads of the block construct it.
// `factors`: [kMaxHeads][kChunkGroups], shared.
struct Chunk {
    int list, first_group;  // of the block
    int group, cell;        // of the thread: its group, and its first cell
    Sight sight;            // of its cells, from bit 0 on

    __device__ Chunk(const SampleBatch & b, int list, int number, float * factors)
        : list(list), first_group(number * kChunkGroups), group(first_group + threadIdx.x * kEach / kGroupCells),
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

// A warp's sums.
struct Sums {
    uint32_t n_rows, n_visible, n_certain, missed;
};

// A block lists the rows of a chunk behind those of the chunks before. It waits until these are counted: blocks take chunks in the order in which they
// begin, so whoever counts them runs already, and counts before it waits itself.
__global__ void __launch_bounds__(kThreads) sample_emit(const SampleBatch b) {
    EDGEKV_SHARED(float[kMaxHeads * kChunkGroups], factors);
    EDGEKV_SHARED(Sums[kWarps], warps);
    EDGEKV_SHARED(uint32_t, begun);
    EDGEKV_SHARED(uint32_t, before_block);
    const Scratch scratch = scratch_of(b);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    if (threadIdx.x == 0) {
        begun = atomicAdd(scratch.n_begun, 1u);
    }
    __syncthreads();
    const int n_chunks = sample_chunks(b.n_groups), number = static_cast<int>(begun) % n_chunks;
    const Chunk chunk(b, static_cast<int>(begun) / n_chunks, number, factors);
    uint32_t chance[kEach], by_share[kEach];
    chunk.chances(b, factors, chance, by_share);
    const uint32_t drawn = chunk.drawn(b, chance), n_drawn = static_cast<uint32_t>(__popc(drawn));
    uint32_t through = n_drawn;  // of the warp's threads up to this one
    for (unsigned step = 1; step < kWarp; step *= 2) {
        const uint32_t other = __shfl_up_sync(kAll, through, step);
        through += lane >= static_cast<int>(step) ? other : 0u;
    }
    uint32_t n_visible = 0, n_certain = 0, missed = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        n_visible += static_cast<uint32_t>(chunk.sight.visible >> i & 1);
        n_certain += chance[i] == kOne ? 1u : 0u;
        missed += (drawn >> i & 1) != 0 ? 0u : by_share[i];
    }
    n_visible = __reduce_add_sync(kAll, n_visible);
    n_certain = __reduce_add_sync(kAll, n_certain);
    missed = __reduce_add_sync(kAll, missed);  // of a warp at most 2^27
    if (lane == kWarp - 1) {
        warps[warp] = {through, n_visible, n_certain, missed};
    }
    __syncthreads();

    const bool last = number + 1 == n_chunks;
    if (warp == 0) {
        uint32_t own = 0, before = 0;
        for (int w = 0; w < kWarps; ++w) {
            own += warps[w].n_rows;
        }
        uint32_t * const counts = scratch.counts + static_cast<int64_t>(chunk.list) * n_chunks;
        if (lane == 0) {
            atomicAdd(&counts[number], own + 1);
        }
        for (int i = lane; i < number; i += kWarp) {
            uint32_t told = 0;
            while (told == 0) {
                told = look(&counts[i]);
            }
            before += told - 1;
        }
        before = __reduce_add_sync(kAll, before);
        if (lane == 0) {
            before_block = before;
            if (last) {
                b.n_rows[chunk.list] = static_cast<int32_t>(before + own);
            }
        }
    }
    __syncthreads();
    int64_t row = static_cast<int64_t>(before_block) + (through - n_drawn);
    for (int w = 0; w < warp; ++w) {
        row += warps[w].n_rows;
    }
    int32_t * const rows = b.rows + static_cast<int64_t>(chunk.list) * b.stride;
    float * const weights = b.weights + static_cast<int64_t>(chunk.list) * b.stride;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        if ((drawn >> i & 1) != 0) {
            rows[row] = chunk.cell + i;
            weights[row] = __fdiv_rn(static_cast<float>(kOne), static_cast<float>(chance[i]));
            ++row;
        }
    }

    if (threadIdx.x == 0 && b.totals != nullptr) {
        unsigned long long sums[3] = {0, 0, 0};
        for (int w = 0; w < kWarps; ++w) {
            sums[0] += warps[w].n_visible;
            sums[1] += warps[w].n_certain;
            sums[2] += warps[w].missed;
        }
        SampleTotals & totals = b.totals[chunk.list % b.n_head_kv];
        atomicAdd(&totals.n_visible, sums[0]);
        atomicAdd(&totals.n_certain, sums[1]);
        if (sums[2] != 0) {
            atomicAdd(&totals.missed, static_cast<unsigned long long>(static_cast<double>(sums[2]) * (kShareSteps / kOne) /
                                                                      resolution_of(b, chunk.list)));
        }
        if (last) {
            atomicAdd(&totals.n_tokens, 1ull);
            atomicAdd(&totals.n_covered, 1ull);
        }
    }
}

}  // namespace

void launch_sample(const SampleBatch & b, Stream stream) {
    const int n_lists = b.n_streams * b.n_tokens * b.n_head_kv, n_rows = n_lists * b.group;
    launch(sample_norms, {static_cast<unsigned>((n_rows + kWarps - 1) / kWarps)}, kThreads, 0, stream, b, n_rows);
    launch(sample_emit, {static_cast<unsigned>(sample_chunks(b.n_groups) * n_lists)}, kThreads, 0, stream, b);
}

}  // namespace edgekv::gpu
