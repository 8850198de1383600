// Which pages are read where there are no sketches, on the device: choose_pages() of plane/host/page_choice.h for all streams, query tokens
// and KV heads of a layer at once. The same rows.
#pragma once

#include "cuda/kernels/sample_device.h"

namespace edgekv::gpu {

// All pointers are device memory; lists as in SampleBatch. Page p of stream s (of the cache) and head h stands at
// h * head_stride + s * pages_per_stream + p.
struct ChooseBatch {
    int n_streams, first_stream;
    int n_tokens;  // of one stream
    int n_head_kv;
    int n_cells;   // in view of one stream
    int page_tokens, pages_per_stream;
    size_t head_stride;

    const Sight * sight;  // [stream * n_tokens + token][sight_stride]
    size_t sight_stride;
    const float * priority;
    const uint8_t * pinned;
    int tokens;   // the budget: see page_choice.h
    float share;

    int32_t * rows;    // out [list][stride], ascending cells
    size_t stride;     // at least n_cells
    int32_t * n_rows;  // out [list]
    SampleTotals * totals;  // [n_head_kv] added to; or null
    char * scratch;         // choose_device_scratch_bytes(), 16-byte aligned
};

size_t choose_device_scratch_bytes(int n_lists, int n_pages);
void launch_choose(const ChooseBatch & batch, Stream stream);

}  // namespace edgekv::gpu
