// Finds the cells that each query token sees, and those it always reads: once a step, before the first layer that selects.
#pragma once

#include "cuda/gpu.h"
#include "kernels/sketch/sketch.h"

namespace edgekv::gpu {

// All pointers are device memory. Stream s of the graph is stream `first_stream` + s of the cache.
struct SightProblem {
    int n_streams, first_stream;
    int n_tokens;          // of one stream
    int n_cells;           // in view; any number
    int n_cells_stream;    // of the cache

    MaskType mask_type;  // none: every cell in view is seen
    const char * mask;   // [n_streams][n_tokens][n_cells]
    size_t mask_stride_token, mask_stride_stream;  // bytes

    const int32_t * positions;  // [stream of the cache][n_cells_stream]
    const int32_t * open;       // [stream of the cache][groups_per_stream] not 0: the group has no sketch
    const uint32_t * pins;      // [stream of the cache][groups_per_stream][2] a bit for each pinned cell
    int groups_per_stream;
    const int64_t * k_idxs;     // [n_streams][n_tokens] the token's own cell, counted through all streams of the cache

    int sink_tokens, recent_tokens, page_tokens;  // see cache/certain.h

    Sight * sight;  // out [n_streams][n_tokens][stride]
    size_t stride;  // at least the groups in view
};

// For each group of cells in view: a bit for each cell that the token sees, and a bit for each of these that it always reads: the first
// and the newest tokens, pinned cells, and all cells of an open group. Cells past the view have no bit.
void launch_sight(const SightProblem & problem, Stream stream);

}  // namespace edgekv::gpu
