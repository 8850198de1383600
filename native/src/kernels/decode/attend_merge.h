// Merges the threads' partial softmaxes into the output; run by the last thread to arrive.
#pragma once

#include <string.h>

#include "kernels/decode/attend_softmax.h"

namespace edgekv {
namespace {

// Leaves the query's final max and 1/sum in `max` and `inverse` (0 if it saw nothing).
inline void merge_query(const AttendProblem & p, const AttendPlan & plan, char * workspace, int query, int head, char * out,
                        float & max, float & inverse) {
    const auto partial = [&](int i) { return workspace + plan.partial_offset + static_cast<size_t>(i) * plan.partial_bytes; };
    const auto max_of = [&](int i) { return reinterpret_cast<const float *>(partial(i))[query]; };

    float top = p.sinks != nullptr ? p.sinks[head] : -INFINITY;
    for (int i = 0; i < plan.n_threads; ++i) {
        top = max_of(i) > top ? max_of(i) : top;
    }
    const auto weight_of = [&](int i) { return max_of(i) == -INFINITY ? 0.0f : expf(max_of(i) - top); };

    float total = p.sinks != nullptr && top > -INFINITY ? expf(p.sinks[head] - top) : 0.0f;
    for (int i = 0; i < plan.n_threads; ++i) {
        total += weight_of(i) * reinterpret_cast<const float *>(partial(i) + plan.sum_offset)[query];
    }
    max = top;
    inverse = total > 0.0f ? 1.0f / total : 0.0f;

    // Threads' contributions are added up in `out` itself, thread by thread.
    for (int i = 0; i < plan.n_threads; ++i) {
        const float * acc = reinterpret_cast<const float *>(partial(i) + plan.acc_offset) + static_cast<size_t>(query) * plan.acc_stride;
        const F factor = Simd::set1(weight_of(i) * inverse);
        int d = 0;
        for (; d + kLanes <= attend_v_dim(p); d += kLanes) {
            const F x = Simd::mul(Simd::load(acc + d), factor);
            Simd::store(out + d * 4, i == 0 ? x : Simd::add(Simd::load(out + d * 4), x));
        }
        if (d < attend_v_dim(p)) {
            const int left = attend_v_dim(p) - d;
            const F x = Simd::mul(Simd::load(acc + d), factor);
            Simd::store_some(out + d * 4, i == 0 ? x : Simd::add(Simd::load_some(out + d * 4, left), x), left);
        }
    }
}

inline void merge(const AttendProblem & p, const AttendPlan & plan, char * workspace) {
    const bool observed = p.mass_max != nullptr || p.mass_sum != nullptr;
    float * final_of_query = reinterpret_cast<float *>(workspace + plan.final_offset);
    for (int query = 0; query < plan.n_queries; ++query) {
        const int kv = query / plan.queries_per_kv;
        const int token = query % plan.queries_per_kv / plan.group;
        const int head = kv * plan.group + query % plan.group;
        char * out = p.out + static_cast<size_t>(token) * p.out_stride_token + static_cast<size_t>(head) * p.out_stride_head;
        float max, inverse;
        merge_query(p, plan, workspace, query, head, out, max, inverse);
        if (observed) {
            final_of_query[2 * query] = max;
            final_of_query[2 * query + 1] = inverse;
        }
    }
}

}  // namespace
}  // namespace edgekv
