// Sampling on the device: sample_rows() of sample.h for all streams, query tokens and KV heads of a layer at once, without a word from
// the host: sums of p by block, then each block's rows by where its sums pass a mark. A probability is the float's nearest step of
// 2^-20, so a row may differ from the specification's where a running sum comes that close to a mark. The same inputs give the same bytes.
#pragma once

#include "cuda/gpu.h"
#include "kernels/select/sample.h"

namespace edgekv::gpu {

// What a KV head came to, summed up over query tokens.
struct SampleTotals {
    unsigned long long n_tokens, n_visible, n_certain;
};

// All pointers but none of the numbers are device memory. List l = (stream * n_tokens + token) * n_head_kv + head, with `stream`
// counted in the graph.
struct SampleBatch {
    int n_streams, first_stream;
    int n_tokens;  // of one stream
    int n_head_kv, group;
    int n_groups;  // in view of one stream

    Shares shares;       // [list][group] rows, as launch_sketch_scan() leaves them
    const float * sinks; // [n_head_kv * group], or null
    const Sight * sight; // [stream * n_tokens + token][sight_stride]
    size_t sight_stride;

    // page p of stream s (of the cache) and head h stands at h * head_stride + s * pages_per_stream + p
    const uint8_t * pinned;
    int page_tokens, pages_per_stream;
    size_t head_stride;
    float resolution;

    int32_t * rows;    // out [list][stride], ascending cells
    float * weights;   // out, as many
    size_t stride;     // at least 64 * n_groups
    int32_t * n_rows;  // out [list]
    SampleTotals * totals;  // [n_head_kv] added to; or null
    char * scratch;         // sample_device_scratch_bytes(), 16-byte aligned; free again for the next launch on the stream
};

size_t sample_device_scratch_bytes(int n_lists, int n_groups, int group);
void launch_sample(const SampleBatch & batch, Stream stream);

}  // namespace edgekv::gpu
