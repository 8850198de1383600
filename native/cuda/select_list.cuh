// One list of selection: what the pages of a (stream, token, KV head) are worth, and how much of the mass the taken ones cover.
// Part of select_device.cu.
#pragma once

#include "select_device.h"
#include "select_radix.cuh"

namespace edgekv::gpu {
namespace {

constexpr int kHeads = 8;  // query heads at a time, in registers
constexpr float kMassUnit = 0x1p40f;  // mass as whole numbers, which add up the same in any order; a head's is at most its group

using Mass = unsigned long long;

// What a list came to, for the kernel that sums up.
struct Outcome {
    float threshold, coverage;
    int n_visible, fell_back;
};

// The scratch of one list: by page the value, and the mass's sum and maximum over the query heads; by query head
// mass = weight(estimate - shift) * inverse, and the mass of all that is visible.
struct Scratch {
    float *value, *sum, *top, *shift, *inverse, *all;
    Outcome * outcome;
};

__host__ __device__ inline size_t padded(int n) {
    return (static_cast<size_t>(n) + 3) / 4 * 4;
}

__host__ __device__ inline size_t list_floats(int n_pages, int group) {
    return 3 * padded(n_pages) + 3 * padded(group) + sizeof(Outcome) / sizeof(float);
}

__device__ inline Scratch scratch_of(const SelectBatch & b, int64_t list) {
    Scratch s;
    s.value = reinterpret_cast<float *>(b.scratch) + list * list_floats(b.n_pages, b.group);
    s.sum = s.value + padded(b.n_pages);
    s.top = s.sum + padded(b.n_pages);
    s.shift = s.top + padded(b.n_pages);
    s.inverse = s.shift + padded(b.group);
    s.all = s.inverse + padded(b.group);
    s.outcome = reinterpret_cast<Outcome *>(s.all + padded(b.group));
    return s;
}

// Where the per-page arrays of a (stream of the graph, head) begin.
__device__ inline int64_t pages_at(const SelectBatch & b, int stream, int head) {
    return head * static_cast<int64_t>(b.head_stride) + static_cast<int64_t>(b.first_stream + stream) * b.pages_per_stream;
}

__device__ inline int64_t list_of(const SelectBatch & b, int stream, int token, int head) {
    return (static_cast<int64_t>(stream) * b.n_tokens + token) * b.n_head_kv + head;
}

// as the CPU's vector_exp(): nothing subnormal, so that pages of no weight are equal
__device__ inline float weight(float x) {
    return x < -87.0f ? 0.0f : expf(x);
}

__device__ inline int budget_pages(const SelectBatch & b, int n_visible) {
    const int wanted = b.tokens > 0 ? (b.tokens + b.page_tokens - 1) / b.page_tokens
                                    : static_cast<int>(lroundf(__fmul_rn(b.share, static_cast<float>(n_visible))));
    return min(n_visible, max(wanted, b.min_tokens / b.page_tokens));
}

// A step of one token and one stream may use what an earlier one found.
__device__ inline bool takes_turns(const SelectBatch & b) {
    return b.reselect > 1 && b.n_tokens == 1 && b.n_streams == 1 && b.known != nullptr;
}

struct Shared {
    Bins<uint32_t> values;
    Bins<Mass> mass;
    float floats[kHeads * kMaxWarps];
    int ints[2 * kMaxWarps];
    Mass masses[2 * kMaxWarps];
};

// One list: the pages of one (stream, token, KV head).
struct Lister {
    const SelectBatch & b;
    Shared & shared;
    const Scratch s;
    const float * estimates;  // [group][estimate_stride], or null
    const float * known;      // [n_pages], or null
    float * keep;             // where `known` of later steps is written, or null
    const float * standing;
    const float * priority;
    const uint8_t * pinned;
    const float * sinks;

    int n_visible = 0, n_pinned = 0;

    __device__ bool estimated() const { return estimates != nullptr || known != nullptr; }

    // the weights of query head g on a page; `from` = its estimates
    __device__ float page_weight(const float * from, int page, float shift) const {
        float sum = 0.0f;
        for (int strip = page * b.per_page; strip < (page + 1) * b.per_page; ++strip) {
            sum += weight(from[strip] - shift);
        }
        return sum;
    }

    // Value of a page: +inf what is always taken, -inf what cannot be seen. All lanes of a warp call; counts where it is.
    __device__ void rate(int page, bool inside, float sum) {
        float value = -INFINITY;
        if (inside) {
            const float of_mass = estimated() ? 1.0f - b.blend : 0.0f, of_priority = estimated() ? b.blend : 1.0f;
            const float prior = priority != nullptr ? priority[page] : 0.0f;
            const float x = fmaf(sum, of_mass, __fmul_rn(prior, of_priority));
            value = (x > 0.0f ? x : 0.0f) + standing[page];
            if (pinned != nullptr && pinned[page] != 0 && value >= 0.0f) {
                value = INFINITY;
            }
            s.value[page] = value;
            if (keep != nullptr) {
                keep[page] = sum;
            }
        }
        n_visible += value >= 0.0f ? 1 : 0;
        n_pinned += value == INFINITY ? 1 : 0;
        const uint32_t bits = __float_as_uint(value);
        add_to_bin(shared.values.count, bits < kInfinityBits, (bits >> 20) % kValueBuckets, 1u);
    }

    // Softmax of the query heads [g0, g0 + n) over the visible strips; the last of them rate the pages.
    __device__ void estimate(int g0, int n) {
        const float * const from = estimates + static_cast<int64_t>(g0) * b.estimate_stride;
        float shift[kHeads], sum[kHeads];
#pragma unroll
        for (int k = 0; k < kHeads; ++k) {
            shift[k] = -INFINITY;
            sum[k] = 0.0f;
        }
        for (int page = threadIdx.x; page < b.n_pages; page += blockDim.x) {
            const bool seen = standing[page] >= 0.0f;
            for (int strip = page * b.per_page; strip < (page + 1) * b.per_page; ++strip) {
#pragma unroll
                for (int k = 0; k < kHeads; ++k) {
                    if (k < n) {
                        const float x = from[k * b.estimate_stride + strip];
                        shift[k] = seen ? fmaxf(shift[k], x) : shift[k];
                    }
                }
            }
        }
        join_block(shift, n, -INFINITY, shared.floats, Max());
#pragma unroll
        for (int k = 0; k < kHeads; ++k) {
            if (k < n && sinks != nullptr) {
                shift[k] = fmaxf(shift[k], sinks[g0 + k]);
            }
            shift[k] = shift[k] == -INFINITY ? 0.0f : shift[k];  // sees nothing
        }
        for (int page = threadIdx.x; page < b.n_pages; page += blockDim.x) {
            const bool seen = standing[page] >= 0.0f;
#pragma unroll
            for (int k = 0; k < kHeads; ++k) {
                if (k < n) {
                    const float x = page_weight(from + k * b.estimate_stride, page, shift[k]);
                    sum[k] += seen ? x : 0.0f;
                }
            }
        }
        join_block(sum, n, 0.0f, shared.floats, Add());
        float inverse[kHeads];
#pragma unroll
        for (int k = 0; k < kHeads; ++k) {
            if (k < n) {
                inverse[k] = sum[k] > 0.0f ? 1.0f / (sum[k] + (sinks != nullptr ? expf(sinks[g0 + k] - shift[k]) : 0.0f)) : 0.0f;
                if (threadIdx.x == 0) {
                    s.shift[g0 + k] = shift[k];
                    s.inverse[g0 + k] = inverse[k];
                    s.all[g0 + k] = sum[k] * inverse[k];
                }
            }
        }
        const bool last = g0 + n == b.group;
        for (int first = 0; first < b.n_pages; first += blockDim.x) {
            const int page = first + threadIdx.x;
            const bool inside = page < b.n_pages;
            float page_sum = 0.0f, top = 0.0f;
            if (inside) {
                if (g0 > 0) {
                    page_sum = s.sum[page];
                    top = s.top[page];
                }
                if (standing[page] >= 0.0f) {
#pragma unroll
                    for (int k = 0; k < kHeads; ++k) {
                        if (k < n) {
                            const float mass = page_weight(from + k * b.estimate_stride, page, shift[k]) * inverse[k];
                            page_sum += mass;
                            top = fmaxf(top, mass);
                        }
                    }
                }
                s.sum[page] = page_sum;
                s.top[page] = top;
            }
            if (last) {
                rate(page, inside, page_sum);
            }
        }
    }

    __device__ void rate_all() {
        clear_bins(shared.values, kValueBuckets);
        __syncthreads();
        if (estimates != nullptr) {
            for (int g0 = 0; g0 < b.group; g0 += kHeads) {
                estimate(g0, min(kHeads, b.group - g0));
            }
        } else {
            for (int first = 0; first < b.n_pages; first += blockDim.x) {
                const int page = first + threadIdx.x;
                const float sum = known != nullptr && page < b.n_pages ? known[page] : 0.0f;
                if (page < b.n_pages) {
                    s.sum[page] = s.top[page] = sum;
                }
                rate(page, page < b.n_pages, sum);
            }
        }
        int counts[2] = {n_visible, n_pinned};
        join_block(counts, 2, 0, shared.ints, Add());  // its barriers show the values and bins to all
        n_visible = counts[0];
        n_pinned = counts[1];
    }

    __device__ Mass mass_of(int page) const {
        const float mass = s.sum[page];
        return mass > 0.0f ? static_cast<Mass>(fminf(mass, 1024.0f) * kMassUnit) : 0;
    }

    // The value with which the best pages reach the coverage target; 0: all together do not, or do not quite.
    __device__ float coverage_threshold() {
        Mass sums[2] = {0, 0};  // always taken, visible
        for (int page = threadIdx.x; page < b.n_pages; page += blockDim.x) {
            sums[0] += s.value[page] == INFINITY ? mass_of(page) : 0;
            sums[1] += s.value[page] >= 0.0f ? mass_of(page) : 0;
        }
        join_block(sums, 2, Mass(0), shared.masses, Add());
        const Mass wanted = static_cast<Mass>(ceil(static_cast<double>(b.coverage) * static_cast<double>(sums[1])));
        if (sums[0] >= wanted) {
            return INFINITY;
        }
        const Rank<Mass> rank =
            find_rank(shared.mass, false, s.value, b.n_pages, wanted - sums[0], [&](int page) { return mass_of(page); });
        return rank.found ? rank.value : 0.0f;
    }

    // Coverage of each query head by the `n_taken` pages of the list; returns the mean.
    __device__ float cover(float threshold, const int32_t * pages, int n_taken, float * covered) {
        float total = 0.0f;
        if (!estimated() || n_taken == n_visible) {
            for (int g = threadIdx.x; g < b.group; g += blockDim.x) {
                covered[g] = 1.0f;
            }
            return 1.0f;
        }
        if (known != nullptr) {  // of all query heads together
            float sums[2] = {0.0f, 0.0f};
            for (int page = threadIdx.x; page < b.n_pages; page += blockDim.x) {
                sums[0] += s.value[page] >= threshold ? s.sum[page] : 0.0f;
                sums[1] += s.value[page] >= kNotTaken ? s.sum[page] : 0.0f;
            }
            join_block(sums, 2, 0.0f, shared.floats, Add());
            const float share = sums[1] > 0.0f ? fminf(sums[0] / sums[1], 1.0f) : 1.0f;
            for (int g = threadIdx.x; g < b.group; g += blockDim.x) {
                covered[g] = share;
            }
            return share;
        }
        for (int g0 = 0; g0 < b.group; g0 += kHeads) {
            const int n = min(kHeads, b.group - g0);
            const float * const from = estimates + static_cast<int64_t>(g0) * b.estimate_stride;
            float sum[kHeads], shift[kHeads];
#pragma unroll
            for (int k = 0; k < kHeads; ++k) {
                sum[k] = 0.0f;
                shift[k] = k < n ? s.shift[g0 + k] : 0.0f;
            }
            for (int i = threadIdx.x; i < n_taken; i += blockDim.x) {
                const int page = pages[i];
#pragma unroll
                for (int k = 0; k < kHeads; ++k) {
                    if (k < n) {
                        sum[k] += page_weight(from + k * b.estimate_stride, page, shift[k]);
                    }
                }
            }
            join_block(sum, n, 0.0f, shared.floats, Add());
#pragma unroll
            for (int k = 0; k < kHeads; ++k) {
                if (k < n) {
                    const float all = s.all[g0 + k];
                    const float share = all > 0.0f ? fminf(sum[k] * s.inverse[g0 + k] / all, 1.0f) : 1.0f;
                    total += share;
                    if (threadIdx.x == 0) {
                        covered[g0 + k] = share;
                    }
                }
            }
        }
        return total / static_cast<float>(b.group);
    }
};

}  // namespace
}  // namespace edgekv::gpu
