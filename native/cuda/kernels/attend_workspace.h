// The workspace holds a part's results until its merge. A row is a (token, query head) pair: row = token*n_head + head.
#pragma once

#include "cuda/kernels/attend_device.h"

namespace edgekv::gpu {

struct AttendWorkspace {
    float2 * max_sum;  // [n_rows][n_partials]: largest logit, -inf where nothing was seen, and sum of exp(logit - max)
    float * out;       // [n_rows][n_partials][head_dim]: sum of exp(logit - max)*v
    // [n_rows][strip_stride], if every cell is attended and mass is observed: the sum of exp(logit - y) over the strip's cells, and y, the
    // warp's max so far. The output uses the same exponentials, so mass costs no second pass over K. A pair, because one log-sum has
    // too few bits beside a bias of -1e30. Strip i is the i-th of the view.
    float2 * strips;
    ListSums * sums;   // [n_head_kv][page_blocks()], with lists
    float * logits;    // [n_rows][logit_stride], with lists if keeps_logits(): entry i is the logit of the list's i-th row
    int n_partials;
    int strip_stride, logit_stride;
};

inline __host__ __device__ bool observes(const AttendProblem & p) { return p.mass_max != nullptr || p.mass_sum != nullptr; }
inline __host__ __device__ bool keeps_logits(const AttendProblem & p) { return observes(p) || (p.error_every > 0 && p.hits != nullptr); }

AttendWorkspace attend_workspace(const AttendProblem & problem, void * workspace, int n_partials);

void launch_attend_lists(const AttendProblem & problem, const AttendPart & part, const AttendWorkspace & workspace, Stream stream);

}  // namespace edgekv::gpu
