// Merges the threads' partial softmaxes into the output and the mass arrays; run by the last thread to arrive.
#pragma once

#include <string.h>

#include "attend_softmax.h"

namespace edgekv {
namespace {

// Leaves the row's final max and 1/sum in `max` and `inverse` (0 if the row saw nothing).
inline void merge_row(const AttendProblem & p, const AttendPlan & plan, char * workspace, int row, int head, char * out,
                      float & max, float & inverse) {
    const auto partial = [&](int i) { return workspace + plan.partial_offset + static_cast<size_t>(i) * plan.partial_bytes; };
    const auto max_of = [&](int i) { return reinterpret_cast<const float *>(partial(i))[row]; };

    float top = p.sinks != nullptr ? p.sinks[head] : -INFINITY;
    for (int i = 0; i < plan.n_threads; ++i) {
        top = max_of(i) > top ? max_of(i) : top;
    }
    const auto weight_of = [&](int i) { return max_of(i) == -INFINITY ? 0.0f : expf(max_of(i) - top); };

    float total = p.sinks != nullptr && top > -INFINITY ? expf(p.sinks[head] - top) : 0.0f;
    for (int i = 0; i < plan.n_threads; ++i) {
        total += weight_of(i) * reinterpret_cast<const float *>(partial(i) + plan.sum_offset)[row];
    }
    max = top;
    inverse = total > 0.0f ? 1.0f / total : 0.0f;

    // Threads' contributions are added up in `out` itself, thread by thread.
    for (int i = 0; i < plan.n_threads; ++i) {
        const float * acc = reinterpret_cast<const float *>(partial(i) + plan.acc_offset) + static_cast<size_t>(row) * p.head_dim;
        const F factor = Simd::set1(weight_of(i) * inverse);
        for (int d = 0; d < p.head_dim; d += kLanes) {
            const F x = Simd::mul(Simd::load(acc + d), factor);
            Simd::store(out + d * 4, i == 0 ? x : Simd::add(Simd::load(out + d * 4), x));
        }
    }
}

// Turns a row's strip sums into its softmax weight per page, in place.
inline void page_masses(const AttendProblem & p, const AttendPlan & plan, float * sums, const float * tops, float max,
                        float inverse) {
    const F top = Simd::set1(max);
    for (int s = 0; s < plan.n_strips; s += kLanes) {
        const F factor = Simd::mul(vector_exp(Simd::sub(Simd::load(tops + s), top)), Simd::set1(inverse));
        Simd::store(sums + s, Simd::mul(Simd::load(sums + s), factor));
    }
    const int per_page = p.page_tokens / kStripCells;
    if (per_page == 1) {
        return;
    }
    for (int page = 0; page * per_page < plan.n_strips; ++page) {
        const int first = page * per_page;
        const int last = first + per_page < plan.n_strips ? first + per_page : plan.n_strips;
        float mass = 0.0f;
        for (int s = first; s < last; ++s) {
            mass += sums[s];
        }
        sums[page] = mass;
    }
}

// Adds the masses of one token's heads in one group to the arrays of the KV head.
inline void add_masses(const float * masses, size_t stride, int n_heads, int n_pages, float * mass_max, float * mass_sum) {
    int page = 0;
    for (; page + kLanes <= n_pages; page += kLanes) {
        F top = Simd::load(masses + page);
        F sum = top;
        for (int g = 1; g < n_heads; ++g) {
            const F x = Simd::load(masses + static_cast<size_t>(g) * stride + page);
            top = Simd::max(top, x);
            sum = Simd::add(sum, x);
        }
        if (mass_max != nullptr) {
            Simd::store(mass_max + page, Simd::add(Simd::load(mass_max + page), top));
        }
        if (mass_sum != nullptr) {
            Simd::store(mass_sum + page, Simd::add(Simd::load(mass_sum + page), sum));
        }
    }
    for (; page < n_pages; ++page) {
        float top = 0.0f;
        float sum = 0.0f;
        for (int g = 0; g < n_heads; ++g) {
            const float x = masses[static_cast<size_t>(g) * stride + page];
            top = x > top ? x : top;
            sum += x;
        }
        if (mass_max != nullptr) {
            mass_max[page] += top;
        }
        if (mass_sum != nullptr) {
            mass_sum[page] += sum;
        }
    }
}

inline void merge(const AttendProblem & p, const AttendPlan & plan, char * workspace) {
    const bool observed = p.mass_max != nullptr || p.mass_sum != nullptr;
    const int n_pages = (p.n_cells + p.page_tokens - 1) / p.page_tokens;
    float * strip_sum = reinterpret_cast<float *>(workspace + plan.strip_sum_offset);
    const float * strip_max = reinterpret_cast<const float *>(workspace + plan.strip_max_offset);
    for (int kv = 0; kv < p.n_head_kv; ++kv) {
        for (int t = 0; t < p.n_tokens; ++t) {
            const int first_row = kv * plan.rows_per_kv + t * plan.group;
            bool any = false;
            for (int g = 0; g < plan.group; ++g) {
                const int head = kv * plan.group + g;
                char * out = p.out + static_cast<size_t>(t) * p.out_stride_token + static_cast<size_t>(head) * p.out_stride_head;
                float max, inverse;
                merge_row(p, plan, workspace, first_row + g, head, out, max, inverse);
                if (observed && max > -INFINITY) {
                    const size_t strip = static_cast<size_t>(first_row + g) * plan.strip_stride;
                    page_masses(p, plan, strip_sum + strip, strip_max + strip, max, inverse);
                    any = true;
                }
            }
            if (any) {  // the heads of a token share its mask: all of them saw something, or none did
                add_masses(strip_sum + static_cast<size_t>(first_row) * plan.strip_stride, plan.strip_stride, plan.group, n_pages,
                           p.mass_max != nullptr ? p.mass_max + static_cast<size_t>(kv) * p.mass_stride : nullptr,
                           p.mass_sum != nullptr ? p.mass_sum + static_cast<size_t>(kv) * p.mass_stride : nullptr);
            }
        }
    }
}

}  // namespace
}  // namespace edgekv
