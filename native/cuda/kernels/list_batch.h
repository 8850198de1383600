// The arguments of both ways to select rows on the device: the query tokens, and the place of their lists.
#pragma once

#include "cuda/gpu.h"
#include "kernels/select/sample.h"

namespace edgekv::gpu {

// A KV head's sums over query tokens.
struct SampleTotals {
    unsigned long long n_tokens, n_visible, n_certain;
    unsigned long long n_covered;  // tokens with shares from sketches
    unsigned long long missed;     // their estimated shares of the attention on unread rows, in steps of 2^-40
};

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
    char * scratch;         // 16-byte aligned; the next launch on the stream may use it
};

}  // namespace edgekv::gpu
