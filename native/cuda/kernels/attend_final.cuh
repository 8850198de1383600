// The final softmax of a row from its partials.
#pragma once

#include "cuda/kernels/attend_workspace.h"

namespace edgekv::gpu {
namespace {

struct Final {
    float max, inverse;  // 0: the row saw nothing
};

// Row `i` of a KV head is (token i/group, head i%group).
__device__ inline size_t row_of(const AttendProblem & p, int kv, int i) {
    const int group = p.n_head/p.n_head_kv;
    return static_cast<size_t>(i/group)*p.n_head + kv*group + i%group;
}

__device__ inline float weight_of(float2 partial, float max) { return partial.x == -INFINITY ? 0.0f : __expf(partial.x - max); }

// One warp calls it.
__device__ inline Final final_of(const AttendProblem & p, const AttendWorkspace & workspace, int kv, int i, int lane) {
    const size_t row = row_of(p, kv, i);
    const float2 * partials = workspace.max_sum + row*workspace.n_partials;
    const float sink = p.sinks != nullptr ? p.sinks[row%p.n_head] : -INFINITY;
    float max = sink;
    for (int at = lane; at < workspace.n_partials; at += kWarp) {
        max = fmaxf(max, partials[at].x);
    }
    max = most_of_warp(max);
    float sum = 0.0f;
    for (int at = lane; at < workspace.n_partials; at += kWarp) {
        sum += partials[at].y*weight_of(partials[at], max);
    }
    sum = sum_of_warp(sum);
    sum += sink > -INFINITY ? __expf(sink - max) : 0.0f;
    return {max, sum > 0.0f ? 1.0f/sum : 0.0f};
}

}  // namespace
}  // namespace edgekv::gpu
