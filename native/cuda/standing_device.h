// What each query token sees, page by page: once per step, ahead of the first layer that selects or streams pages.
#pragma once

#include "attend.h"
#include "gpu.h"

namespace edgekv::gpu {

// All pointers are device memory. Stream s of the graph is stream `first_stream` + s of the cache.
struct StandingProblem {
    int n_streams, first_stream;
    int n_tokens;          // of one stream
    int n_cells;           // in view; need not be a multiple of page_tokens
    int page_tokens;       // a multiple of 16
    int pages_per_stream;  // of the cache; the view has no more
    int n_cells_stream;    // of the cache

    MaskType mask_type;  // none: every cell in view is seen
    const char * mask;   // [n_streams][n_tokens][n_cells]
    size_t mask_stride_token, mask_stride_stream;  // bytes

    const int32_t * newest;     // [stream of the cache][pages_per_stream] newest position in the page
    const int32_t * oldest;
    const int32_t * positions;  // [stream of the cache][n_cells_stream]
    const int64_t * k_idxs;     // [n_streams][n_tokens] the token's own cell, counted through all streams of the cache

    int sink_tokens, recent_tokens;

    float * standing;  // out [n_streams][n_tokens][stride]
    size_t stride;     // floats; at least pages_per_stream + 1
};

// standing[page] = -inf: the token sees no cell of it, +inf: it is always taken (sinks and recent pages), otherwise 0;
// standing[pages_per_stream] = the number of pages seen. Pages behind the view, and what lies behind the number, are 0 and mean
// nothing.
bool launch_standing(const StandingProblem & problem, Stream stream);

}  // namespace edgekv::gpu
