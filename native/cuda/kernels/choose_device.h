// Chooses the pages to read without sketches, on the device: choose_pages() of attention/cpu/page_choice.h for all streams, query tokens
// and KV heads of a layer at once, with the same rows as result.
#pragma once

#include "cuda/kernels/list_batch.h"

namespace edgekv::gpu {

// The stride is at least n_cells.
struct ChooseBatch : ListBatch {
    int n_cells;  // in view of one stream
    int page_tokens, pages_per_stream;
    size_t head_stride;
    const float * priority;  // page p of the cache's stream s, head h: at h * head_stride + s * pages_per_stream + p
    int tokens;   // the budget: see page_choice.h
    float share;
    int exact_tokens;
    uint32_t * keys;  // choose_device_keys_bytes(), 16-byte aligned; the next launch on the stream may use them
};

void launch_choose(const ChooseBatch & batch, Stream stream);

}  // namespace edgekv::gpu
