// The arguments of both ways to select rows on the device: the query tokens, and the place of their lists.
#pragma once

#include "cuda/gpu.h"
#include "kernels/device_sizes.h"
#include "kernels/select/sample.h"

namespace edgekv::gpu {

// All pointers are to device memory. List l = (stream * n_tokens + token) * n_head_kv + head; `stream` counts in the graph.
struct ListBatch {
    int n_streams, first_stream;
    int n_tokens;  // of one stream
    int n_head_kv;

    const Sight * sight; // [stream * n_tokens + token][sight_stride]
    size_t sight_stride;

    int32_t * rows;    // out [list][stride], ascending cells
    size_t stride;     // at least the cells in view
    int32_t * n_rows;  // out [list]
    SampleTotals * totals;  // [n_head_kv] added to; or null
};

}  // namespace edgekv::gpu
