// Turns the strips' weights into attention mass by page. Each thread takes the pages that it walked itself, because its cache holds them.
#pragma once

#include "kernels/decode/attend_softmax.h"

namespace edgekv {
namespace {

constexpr int kChunkPages = 64;  // a multiple of every kLanes; results of a chunk stay in L1

// The softmax weights of pages [first, first + n) of one query over `n_strips` strips. final_of: its maximum, and 1 / its sum.
inline void page_masses(int per_page, int n_strips, int first, int n, const float * sums, const float * tops, const float * final_of,
                        float * mass) {
    const float max = final_of[0], inverse = final_of[1];
    if (per_page == 1) {
        // masses are padded to whole vectors; the padding is never added
        F factor = Simd::zero();
        float factor_of = NAN;  // the running max seldom changes, so its factor usually serves the next vector too
        for (int i = 0; i < n; i += kLanes) {
            const F at = Simd::load(tops + first + i);
            if (tops[first + i] != factor_of || !Simd::all_same(at)) {
                factor = Simd::mul(vector_exp(Simd::sub(at, Simd::set1(max))), Simd::set1(inverse));
                factor_of = Simd::all_same(at) ? tops[first + i] : NAN;
            }
            Simd::store(mass + i, Simd::mul(Simd::load(sums + first + i), factor));
        }
        return;
    }
    for (int i = 0; i < n; ++i) {
        const int begin = (first + i) * per_page;
        const int end = begin + per_page < n_strips ? begin + per_page : n_strips;
        mass[i] = 0.0f;
        for (int s = begin; s < end; ++s) {
            mass[i] += sums[s] * expf(tops[s] - max) * inverse;
        }
    }
}

// Adds a chunk to an array of mass.
inline void add_chunk(float * array, const float * chunk, int n) {
    if (array == nullptr) {
        return;
    }
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        Simd::store(array + i, Simd::add(Simd::load(array + i), Simd::load(chunk + i)));
    }
    for (; i < n; ++i) {
        array[i] += chunk[i];
    }
}

inline void observe(const AttendProblem & p, const AttendPlan & plan, const char * workspace, int ith) {
    const float * strip_sum = reinterpret_cast<const float *>(workspace + plan.strip_sum_offset);
    const float * strip_max = reinterpret_cast<const float *>(workspace + plan.strip_max_offset);
    const float * final_of_query = reinterpret_cast<const float *>(workspace + plan.final_offset);
    const int per_page = p.page_tokens / kStripCells;
    const int n_pages = (p.n_cells + p.page_tokens - 1) / p.page_tokens;

    // roughly the pages of the thread's tiles, in whole cache lines: no two threads write to the same line
    const auto border = [&](int i) {
        return i == plan.n_threads ? n_pages : static_cast<int>(static_cast<int64_t>(n_pages) * i / plan.n_threads / 16 * 16);
    };
    const int end = border(ith + 1);

    alignas(64) float mass[kChunkPages], top[kChunkPages], sum[kChunkPages];
    for (int first = border(ith); first < end; first += kChunkPages) {
        const int n = end - first < kChunkPages ? end - first : kChunkPages;
        for (int kv = 0; kv < p.n_head_kv; ++kv) {
            for (int t = 0; t < p.n_tokens; ++t) {
                const int first_query = kv * plan.queries_per_kv + t * plan.group;
                if (final_of_query[2 * first_query + 1] == 0.0f) {
                    continue;  // the heads of a token share its mask: none of them saw anything
                }
                for (int g = 0; g < plan.group; ++g) {
                    const size_t strip = static_cast<size_t>(first_query + g) * plan.strip_stride;
                    float * into = g == 0 ? sum : mass;
                    page_masses(per_page, plan.n_strips, first, n, strip_sum + strip, strip_max + strip,
                                final_of_query + 2 * (first_query + g), into);
                    for (int i = 0; i < n; i += kLanes) {
                        const F x = Simd::load(into + i);
                        Simd::store(top + i, g == 0 ? x : Simd::max(Simd::load(top + i), x));
                        if (g > 0) {
                            Simd::store(sum + i, Simd::add(Simd::load(sum + i), x));
                        }
                    }
                }
                const size_t at = static_cast<size_t>(kv) * p.mass_stride + static_cast<size_t>(first);
                add_chunk(p.mass_max != nullptr ? p.mass_max + at : nullptr, top, n);
                add_chunk(p.mass_sum != nullptr ? p.mass_sum + at : nullptr, sum, n);
            }
        }
    }
}

}  // namespace
}  // namespace edgekv
