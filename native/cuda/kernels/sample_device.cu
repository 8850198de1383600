#include "cuda/kernels/sample_device.h"

#include "cuda/kernels/kept_rows.cuh"

namespace edgekv::gpu {
namespace {

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

// What all blocks of a list need to know of the whole list: the floor under its cells' chances, and the norms of its query heads. All words are told.
struct Norms {
    uint32_t least;
    Norm of[kMaxHeads];
};
static_assert(sizeof(Norms) == (2 * kMaxHeads + 1) * sizeof(uint32_t), "a word each");

// ---- words ---------------------------------------------------------------------------------------------------------------------

// Blocks tell each other numbers by words of 64 bits, which hold the number and that of the launch. So nobody need clear them, and no fence is needed:
// whoever finds the launch's number has the other with it. The first word counts blocks as they begin and, in its upper half, launches.
struct Words {
    unsigned long long * at;
    uint32_t launch;  // odd, so that no word is told before the first launch

    __device__ void tell(size_t i, uint32_t number) const { atomicExch(at + i, static_cast<unsigned long long>(launch) << 32 | number); }
    __device__ uint32_t hear(size_t i) const {
        unsigned long long told = 0;
        while (static_cast<uint32_t>(told >> 32) != launch) {
            told = look(at + i);
        }
        return static_cast<uint32_t>(told);
    }
};

// A thread of each block calls it once. Returns the block's number in the order in which blocks begin.
__device__ inline uint32_t begin_block(unsigned long long * words, uint32_t & launch) {
    const unsigned long long before = atomicAdd(words, 1ull);
    const uint32_t number = static_cast<uint32_t>(before);
    launch = static_cast<uint32_t>(before >> 32) * 2 + 1;
    if (number + 1 == gridDim.x) {  // the next launch begins at 0
        atomicAdd(words, (1ull << 32) - gridDim.x);
    }
    return number;
}

// ---- norms ---------------------------------------------------------------------------------------------------------------------

// The resolution of the list's KV head.
__device__ inline float resolution_of(const SampleBatch & b, int list) {
    const float own = b.resolutions != nullptr ? b.resolutions[list % b.n_head_kv] : 0.0f;
    return own > 0.0f ? own : b.resolution;
}

// The same sum by one instruction, where the card has it.
template <class T>
__device__ inline T count_of_warp(T x) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    return __reduce_add_sync(kAllLanes, x);
#else
    return sum_of_warp(x);
#endif
}

// A block finds the list's norms in the tops and sums of all groups, and tells them. Bound by latency: 12 bytes a group and query row, and 8 a group.
// The threads that leave the numbers are the first of the block.
__device__ inline void find_norms(const SampleBatch & b, int list, const Words & words, size_t first_word, Norms & norms) {
    EDGEKV_SHARED(float[kMaxHeads][kWarps], tops_of);
    EDGEKV_SHARED(float[kMaxHeads * kWarps], sums_of);
    EDGEKV_SHARED(int[kWarps], seen_of);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const float * const tops = b.shares.tops + static_cast<int64_t>(list) * b.group * b.shares.group_stride;
    const float * const sums = b.shares.sums + static_cast<int64_t>(list) * b.group * b.shares.group_stride;
    const Sight * const sight = b.sight + list / b.n_head_kv * static_cast<int64_t>(b.sight_stride);
    const auto sink_of = [&](int g) { return b.sinks != nullptr ? b.sinks[list % b.n_head_kv * b.group + g] : -INFINITY; };

    for (int g = 0; g < b.group; ++g) {
        float most = -INFINITY;
        for (int i = threadIdx.x; i < b.n_groups; i += kThreads) {
            most = fmaxf(most, tops[g * b.shares.group_stride + i]);
        }
        most = most_of_warp(most);
        if (lane == 0) {
            tops_of[g][warp] = most;
        }
    }
    int n_seen = 0;
    for (int i = threadIdx.x; i < b.n_groups; i += kThreads) {
        const uint64_t seen = sight[i].visible;
        n_seen += __popc(static_cast<unsigned>(seen)) + __popc(static_cast<unsigned>(seen >> 32));
    }
    n_seen = count_of_warp(n_seen);
    if (lane == 0) {
        seen_of[warp] = n_seen;
    }
    __syncthreads();
    const auto most_of = [&](int g) {
        float most = sink_of(g);
        for (int w = 0; w < kWarps; ++w) {
            most = fmaxf(most, tops_of[g][w]);
        }
        return most;
    };
    for (int g = 0; g < b.group; ++g) {
        const float most = most_of(g);
        float total = 0.0f;
        for (int i = threadIdx.x; i < b.n_groups; i += kThreads) {
            const float top = tops[g * b.shares.group_stride + i];
            total += top == -INFINITY ? 0.0f : sums[g * b.shares.group_stride + i] * expf(top - most);
        }
        total = sum_of_warp(total);
        if (lane == 0) {
            sums_of[g * kWarps + warp] = total;
        }
    }
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < b.group) {
        const int g = threadIdx.x;
        const float most = most_of(g), sink = sink_of(g);
        float total = sink == -INFINITY ? 0.0f : expf(sink - most);
        for (int w = 0; w < kWarps; ++w) {
            total += sums_of[g * kWarps + w];
        }
        norms.of[g] = {most, total > 0.0f ? resolution_of(b, list) / (static_cast<float>(b.group) * total) : 0.0f};
        words.tell(first_word + 1 + 2 * g, __float_as_uint(norms.of[g].most));
        words.tell(first_word + 2 + 2 * g, __float_as_uint(norms.of[g].factor));
    }
    if (threadIdx.x == 0) {
        int n_visible = 0;
        for (int w = 0; w < kWarps; ++w) {
            n_visible += seen_of[w];
        }
        norms.least = static_cast<uint32_t>(least_chance(resolution_of(b, list), n_visible, b.exact_tokens));
        words.tell(first_word, norms.least);
    }
}

// ---- chances -------------------------------------------------------------------------------------------------------------------

// The chances of a thread's cells in steps of 2^-20, with and without the floor. All threads of the block construct it.
// `factors`: [kMaxHeads][kChunkGroups], shared.
struct Chunk {
    int list, first_group;  // of the block
    int group, cell;        // of the thread: its group, and its first cell
    Sight sight;            // of its cells, from bit 0 on

    __device__ Chunk(const SampleBatch & b, int list, int number, const Norms & norms, float * factors)
        : list(list), first_group(number * kChunkGroups), group(first_group + threadIdx.x * kEach / kGroupCells),
          cell(first_group * kGroupCells + threadIdx.x * kEach), sight{0, 0} {
        for (int i = threadIdx.x; i < b.group * kChunkGroups; i += kThreads) {
            const int g = i / kChunkGroups, of = first_group + i % kChunkGroups;
            float factor = 0.0f;
            if (of < b.n_groups) {
                const float top = b.shares.tops[(static_cast<int64_t>(list) * b.group + g) * b.shares.group_stride + of];
                factor = top == -INFINITY ? 0.0f : norms.of[g].factor * expf(top - norms.of[g].most);
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

    __device__ void chances(const SampleBatch & b, uint32_t least, const float * factors, uint32_t (&chance)[kEach], uint32_t (&by_share)[kEach]) const {
        if (group >= b.n_groups || (sight.visible & ((1u << kEach) - 1)) == 0) {
#pragma unroll
            for (int i = 0; i < kEach; ++i) {
                chance[i] = by_share[i] = 0;
            }
            return;
        }
        float x[kEach] = {};
        for (int g = 0; g < b.group; ++g) {
            const float factor = factors[g * kChunkGroups + (group - first_group)];
            const uint2 pairs = *reinterpret_cast<const uint2 *>(
                b.shares.cells + (static_cast<int64_t>(list) * b.group + g) * b.shares.cell_stride + cell);
            if (factor > 0.0f) {  // else they may hold anything; the loads of all heads are under way at once
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
            const uint32_t other = __shfl_up_sync(kAllLanes, through, step);
            through += threadIdx.x % kWalkThreads >= step ? other : 0u;
        }
        if (sum == 0) {
            return 0;
        }
        const int64_t stream = b.first_stream + list / (b.n_tokens * b.n_head_kv);
        const int32_t first = b.positions[stream * b.n_cells_stream + cell / kWalkCells * kWalkCells];
        const uint32_t turn = page_turn(b.layer, list % b.n_head_kv, b.positions[b.k_idxs[list / b.n_head_kv]]);
        uint32_t at = static_cast<uint32_t>(walk_offset(turn, first)) + through - sum, rows = 0;
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

// A block lists the rows of a chunk behind those of the chunks before. It waits until the list's norms are known, which the block of its first chunk
// finds, and until the chunks before are counted: blocks take chunks in the order in which they begin, so whoever tells these runs already, and waits for
// nobody behind itself.
__global__ void __launch_bounds__(kThreads) sample_emit(const SampleBatch b) {
    wait_for_launch();
    EDGEKV_SHARED(Norms, norms);
    EDGEKV_SHARED(float[kMaxHeads * kChunkGroups], factors);
    EDGEKV_SHARED(Sums[kWarps], warps);
    EDGEKV_SHARED(uint32_t, begun);
    EDGEKV_SHARED(uint32_t, of_launch);
    EDGEKV_SHARED(uint32_t, before_block);
    EDGEKV_SHARED(Brought[kThreads * kEach], brought);
    EDGEKV_SHARED(unsigned, n_brought);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    if (threadIdx.x == 0) {
        begun = begin_block(b.words, of_launch);
        n_brought = 0;
    }
    __syncthreads();
    const int n_chunks = sample_chunks(b.n_groups), n_lists = static_cast<int>(gridDim.x) / n_chunks;
    const int list = static_cast<int>(begun) % n_lists, number = static_cast<int>(begun) / n_lists;  // the blocks that find norms begin first
    const Words words = {b.words, of_launch};
    const size_t first_word = sample_words(n_lists, b.n_groups, b.group).norms + list * (2 * static_cast<size_t>(b.group) + 1);
    if (number == 0) {
        find_norms(b, list, words, first_word, norms);
    } else if (static_cast<int>(threadIdx.x) < 2 * b.group + 1) {
        reinterpret_cast<uint32_t *>(&norms)[threadIdx.x] = words.hear(first_word + threadIdx.x);
    }
    __syncthreads();
    const Chunk chunk(b, list, number, norms, factors);
    uint32_t chance[kEach], by_share[kEach];
    chunk.chances(b, norms.least, factors, chance, by_share);
    const uint32_t drawn = chunk.drawn(b, chance), n_drawn = static_cast<uint32_t>(__popc(drawn));
    uint32_t through = n_drawn;  // of the warp's threads up to this one
    for (unsigned step = 1; step < kWarp; step *= 2) {
        const uint32_t other = __shfl_up_sync(kAllLanes, through, step);
        through += lane >= static_cast<int>(step) ? other : 0u;
    }
    uint32_t n_visible = 0, n_certain = 0, missed = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        n_visible += static_cast<uint32_t>(chunk.sight.visible >> i & 1);
        n_certain += chance[i] == kOne ? 1u : 0u;
        missed += (drawn >> i & 1) != 0 ? 0u : by_share[i];
    }
    n_visible = count_of_warp(n_visible);
    n_certain = count_of_warp(n_certain);
    missed = count_of_warp(missed);  // of a warp at most 2^27
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
        const size_t counts = 1 + static_cast<size_t>(list) * n_chunks;
        if (lane == 0) {
            words.tell(counts + number, own);
        }
        for (int i = lane; i < number; i += kWarp) {
            before += words.hear(counts + i);
        }
        before = count_of_warp(before);
        if (lane == 0) {
            before_block = before;
            if (last) {
                b.n_rows[list] = static_cast<int32_t>(before + own);
            }
        }
    }
    __syncthreads();
    int64_t row = static_cast<int64_t>(before_block) + (through - n_drawn);
    for (int w = 0; w < warp; ++w) {
        row += warps[w].n_rows;
    }
    int32_t * const rows = b.rows + static_cast<int64_t>(list) * b.stride;
    float * const weights = b.weights + static_cast<int64_t>(list) * b.stride;
    const bool keeps = b.kept.hot.entries != nullptr;
    int32_t * const slots = keeps ? b.kept.slots + static_cast<int64_t>(list) * b.stride : nullptr;
    const int head = list % b.n_head_kv;
    const int64_t stream = b.first_stream + list / (b.n_tokens * b.n_head_kv);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        if ((drawn >> i & 1) != 0) {
            rows[row] = chunk.cell + i;
            weights[row] = __fdiv_rn(static_cast<float>(kOne), static_cast<float>(chance[i]));
            if (keeps) {
                const int32_t slot = copy_of(b.kept, head, stream, chunk.cell + i, of_launch / 2);
                slots[row] = slot;
                if (slot >= kBrought) {
                    brought[atomicAdd(&n_brought, 1u)] = {chunk.cell + i, slot - kBrought};
                }
            }
            ++row;
        }
    }
    if (keeps) {
        __syncthreads();
        bring_rows(b.kept, head, stream, brought, static_cast<int>(n_brought));
    }

    if (threadIdx.x == 0 && b.totals != nullptr) {
        unsigned long long sums[3] = {0, 0, 0};
        for (int w = 0; w < kWarps; ++w) {
            sums[0] += warps[w].n_visible;
            sums[1] += warps[w].n_certain;
            sums[2] += warps[w].missed;
        }
        SampleTotals & totals = b.totals[list % b.n_head_kv];
        atomicAdd(&totals.n_visible, sums[0]);
        atomicAdd(&totals.n_certain, sums[1]);
        if (sums[2] != 0) {
            atomicAdd(&totals.missed, static_cast<unsigned long long>(static_cast<double>(sums[2]) * (kShareSteps / kOne) /
                                                                      resolution_of(b, list)));
        }
        if (last) {
            atomicAdd(&totals.n_tokens, 1ull);
            atomicAdd(&totals.n_covered, 1ull);
        }
    }
}

}  // namespace

void launch_sample(const SampleBatch & b, Stream stream) {
    const int n_lists = b.n_streams * b.n_tokens * b.n_head_kv;
    launch_behind(sample_emit, {static_cast<unsigned>(sample_chunks(b.n_groups) * n_lists)}, kThreads, 0, stream, b);
}

}  // namespace edgekv::gpu
