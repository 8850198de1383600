// What a block does together over an array of values: sums, the value at a rank, and compaction. Every thread of the block calls;
// blockDim.x is a multiple of 32. Part of select_device.cu.
#pragma once

#include "gpu.h"
#include "select.h"

namespace edgekv::gpu {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kMaxWarps = 16;
constexpr uint32_t kInfinityBits = 0x7f800000u;

__device__ inline int lane() { return threadIdx.x % kWarp; }
__device__ inline int warp() { return threadIdx.x / kWarp; }
__device__ inline int n_warps() { return blockDim.x / kWarp; }

// x[k] = the block's x[k] joined by `join`, for k < n <= N; the same order in every run. `shared`: [N][kMaxWarps], free again on
// return.
template <int N, class T, class Join>
__device__ inline void join_block(T (&x)[N], int n, T none, T * shared, Join join) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
        if (k < n) {
            for (int d = kWarp / 2; d > 0; d /= 2) {
                x[k] = join(x[k], __shfl_xor_sync(kAll, x[k], d));
            }
            if (lane() == 0) {
                shared[k * kMaxWarps + warp()] = x[k];
            }
        }
    }
    __syncthreads();
    for (int k = warp(); k < n; k += n_warps()) {
        T y = lane() < n_warps() ? shared[k * kMaxWarps + lane()] : none;
        for (int d = kWarp / 2; d > 0; d /= 2) {
            y = join(y, __shfl_xor_sync(kAll, y, d));
        }
        if (lane() == 0) {
            shared[k * kMaxWarps] = y;
        }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < N; ++k) {
        if (k < n) {
            x[k] = shared[k * kMaxWarps];
        }
    }
    __syncthreads();
}

struct Add {
    template <class T>
    __device__ T operator()(T a, T b) const { return a + b; }
};
struct Max {
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// bins[bin] += amount for the lanes that have one; all lanes of the warp call. Where a warp's values share a bin, as they do in
// ties, one addition stands for all of them.
template <class T>
__device__ inline void add_to_bin(T * bins, bool has, uint32_t bin, T amount) {
    const unsigned active = __ballot_sync(kAll, has);
    if (active == 0) {
        return;
    }
    const int first = __ffs(static_cast<int>(active)) - 1;
    const uint32_t common = __shfl_sync(kAll, bin, first);
    if (!__all_sync(kAll, !has || bin == common)) {
        if (has) {
            atomicAdd(bins + bin, amount);
        }
        return;
    }
    T sum = has ? amount : T(0);
    for (int d = kWarp / 2; d > 0; d /= 2) {
        sum += __shfl_xor_sync(kAll, sum, d);
    }
    if (lane() == first) {
        atomicAdd(bins + common, sum);
    }
}

template <class T>
struct Bins {
    T count[kValueBuckets];
    T part[kValueBuckets / kWarp];  // of 32 bins each
    T above;                        // in the bins above the one that was found
    int found;
};

// One warp: the highest of its lanes' values from lane 0 on with which the sum reaches `wanted`; -1: none. `above` grows by what
// lies before it.
template <class T>
__device__ inline int reach(T x, T wanted, T & above) {
    T sum = x;
    for (int d = 1; d < kWarp; d *= 2) {
        const T other = __shfl_up_sync(kAll, sum, static_cast<unsigned>(d));
        sum += lane() >= d ? other : T(0);
    }
    const unsigned enough = __ballot_sync(kAll, above + sum >= wanted);
    if (enough == 0) {
        above += __shfl_sync(kAll, sum, kWarp - 1);
        return -1;
    }
    const int first = __ffs(static_cast<int>(enough)) - 1;
    above += __shfl_sync(kAll, sum - x, first);
    return first;
}

// The highest bin with which the bins from the top on reach `wanted`, in bins.found (-1: all together do not), and what lies
// above it in bins.above. Begins and ends with a barrier.
template <class T>
__device__ inline void find_bin(Bins<T> & bins, int n_bins, T wanted) {
    const int n_parts = n_bins / kWarp;
    __syncthreads();
    for (int i = warp(); i < n_parts; i += n_warps()) {
        T sum = bins.count[i * kWarp + lane()];
        for (int d = kWarp / 2; d > 0; d /= 2) {
            sum += __shfl_xor_sync(kAll, sum, d);
        }
        if (lane() == 0) {
            bins.part[i] = sum;
        }
    }
    __syncthreads();
    if (warp() == 0) {
        T above = 0;
        int at = -1, part = -1;
        for (int end = n_parts; end > 0 && at < 0; end -= kWarp) {
            at = reach(bins.part[end - 1 - lane()], wanted, above);
            part = end - 1 - at;
        }
        if (at >= 0) {
            at = part * kWarp + kWarp - 1 - reach(bins.count[part * kWarp + kWarp - 1 - lane()], wanted, above);
        }
        if (lane() == 0) {
            bins.found = at;
            bins.above = above;
        }
    }
    __syncthreads();
}

template <class T>
__device__ inline void clear_bins(Bins<T> & bins, int n_bins) {
    for (int b = threadIdx.x; b < n_bins; b += blockDim.x) {
        bins.count[b] = 0;
    }
}

template <class T>
struct Rank {
    bool found;
    float value;
    T wanted;  // what is wanted of the pages that have this value ...
    T there;   // ... and what they have
};

// Of the finite values >= 0: the largest with which those at or above it have `wanted` (> 0) in `amount(i)`. Bits of a float are
// counted from the top, 11, 10 and 10 of them at a time, the first of them in kValueBuckets. `counted`: bins hold those already.
template <class T, class Amount>
__device__ inline Rank<T> find_rank(Bins<T> & bins, bool counted, const float * values, int n, T wanted, Amount amount) {
    Rank<T> rank = {false, 0.0f, wanted, T(0)};
    uint32_t prefix = 0;
    for (int level = 0; level < 3; ++level) {
        const int shift = 20 - 10 * level, n_bins = level == 0 ? kValueBuckets : 1024;
        if (level > 0 || !counted) {
            clear_bins(bins, n_bins);
            __syncthreads();
            for (int first = 0; first < n; first += blockDim.x) {
                const int i = first + threadIdx.x;
                const uint32_t bits =
                    i < n ? __float_as_uint(values[i]) : kInfinityBits;  // what is negative is above +inf as bits
                const bool has = bits < kInfinityBits && (level == 0 || bits >> (shift + 10) == prefix);
                add_to_bin(bins.count, has, (bits >> shift) % n_bins, has ? amount(i) : T(0));
            }
        }
        find_bin(bins, n_bins, rank.wanted);
        const int bin = bins.found;
        if (bin < 0) {
            return rank;
        }
        rank.wanted -= bins.above;
        rank.there = bins.count[bin];
        prefix = prefix * (level == 0 ? 1 : 1024) + bin;
        __syncthreads();  // all have read before the bins are cleared
    }
    rank.found = true;
    rank.value = __uint_as_float(prefix);
    return rank;
}

constexpr float kNotTaken = -1.0f;  // the value of a visible page that loses a tie

// Writes the i with values[i] >= threshold, ascending, and returns their number. Of those that are the threshold itself the
// `excess` first are left out: their value becomes kNotTaken. Each warp has a contiguous range. `n_above`, `n_ties`: [kMaxWarps],
// shared. Ends with a barrier.
__device__ inline int compact(float * values, int n, float threshold, int excess, int32_t * out, int * n_above, int * n_ties) {
    const int per_warp = (n + kWarp * n_warps() - 1) / (kWarp * n_warps()) * kWarp;
    const int begin = min(n, warp() * per_warp), end = min(n, begin + per_warp);
    const unsigned below = (1u << lane()) - 1;
    int above = 0, ties = 0;
    for (int first = begin; first < end; first += kWarp) {
        const int i = first + lane();
        const float x = i < end ? values[i] : -INFINITY;
        above += __popc(__ballot_sync(kAll, x > threshold));
        ties += __popc(__ballot_sync(kAll, x == threshold));
    }
    if (lane() == 0) {
        n_above[warp()] = above;
        n_ties[warp()] = ties;
    }
    __syncthreads();
    above = lane() < n_warps() ? n_above[lane()] : 0;
    ties = lane() < n_warps() ? n_ties[lane()] : 0;
    const int n_taken = __reduce_add_sync(kAll, above) + max(0, __reduce_add_sync(kAll, ties) - excess);
    const bool earlier = lane() < warp();
    int tie = __reduce_add_sync(kAll, earlier ? ties : 0);
    int at = __reduce_add_sync(kAll, earlier ? above : 0) + max(0, tie - excess);
    for (int first = begin; first < end; first += kWarp) {
        const int i = first + lane();
        const float x = i < end ? values[i] : -INFINITY;
        const unsigned tied = __ballot_sync(kAll, x == threshold);
        const bool dropped = x == threshold && tie + __popc(tied & below) < excess;
        const unsigned taken = __ballot_sync(kAll, x >= threshold && !dropped);
        if (dropped) {
            values[i] = kNotTaken;
        }
        if (taken >> lane() & 1) {
            out[at + __popc(taken & below)] = i;
        }
        tie += __popc(tied);
        at += __popc(taken);
    }
    __syncthreads();
    return n_taken;
}

}  // namespace
}  // namespace edgekv::gpu
