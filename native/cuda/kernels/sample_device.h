// Sampling on the device: sample_rows() of sample.h for all streams, query tokens and KV heads of a layer at once. The host waits for
// nothing: one kernel sums p up by block, the next finds each block's rows where its sums pass a mark. A probability is the float's
// nearest step of 2^-20, so a row may differ from the specification's where a running sum comes that close to a mark. The same inputs
// give the same bytes.
#pragma once

#include "cuda/kernels/list_batch.h"

namespace edgekv::gpu {

// With sample_device_scratch_bytes() of scratch, and a stride of at least 64 * n_groups.
struct SampleBatch : ListBatch {
    int group;
    int n_groups;  // in view of one stream

    Shares shares;       // [list][group] rows, as launch_sketch_scan() leaves them
    const float * sinks; // [n_head_kv * group], or null
    float resolution;
    const float * resolutions;  // [n_head_kv] in place of it, 0: it; or null
    // whose walk it is: see walk_offset()
    int layer;
    const int64_t * k_idxs;     // [stream * n_tokens + token] its cell, counted over all streams of the cache
    const int32_t * positions;  // of these cells
    float * weights;     // out, as many as rows
};

size_t sample_device_scratch_bytes(int n_lists, int n_groups, int group);
void launch_sample(const SampleBatch & batch, Stream stream);

}  // namespace edgekv::gpu
