// What a part of the attention leaves for its merge, and where. Rows are (token, query head) pairs: row = token*n_head + head.
#pragma once

#include "attend_device.h"

namespace edgekv::gpu {

// Cells are weighed in strips of 16, whatever a page holds; a strip is read by one warp.
constexpr int kStrip = 16;

struct AttendWorkspace {
    float2 * max_sum;  // [n_rows][n_partials]: largest logit, -inf where nothing was seen, and sum of exp(logit - max)
    float * out;       // [n_rows][n_partials][head_dim]: sum of exp(logit - max)*v
    // [n_rows][strip_stride], where mass is observed: sum of exp(logit - y) of the strip's cells, and y, the max of its warp so
    // far. The same exponentials serve the output, so mass costs no second pass over K; a pair, because one log-sum has too
    // few bits beside a bias of -1e30. With lists strip i is the i-th of the list, else of the view.
    float2 * strips;
    int n_partials;
    int strip_stride;
};

inline __host__ __device__ int view_pages(const AttendProblem & p) { return (p.n_cells + p.page_tokens - 1)/p.page_tokens; }
inline __host__ __device__ bool observes(const AttendProblem & p) { return p.mass_max != nullptr || p.mass_sum != nullptr; }

AttendWorkspace attend_workspace(const AttendProblem & problem, void * workspace, int n_partials);

}  // namespace edgekv::gpu
