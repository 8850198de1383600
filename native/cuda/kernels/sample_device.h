// Sampling on the device: sample_rows() of sample.h for all streams, query tokens and KV heads of a layer in one launch. A probability is rounded to
// the nearest step of 2^-20, so a row may differ from the specification's if its page's sum comes that close to a mark. The same inputs
// give the same bytes.
#pragma once

#include "cuda/kernels/hot_rows.h"
#include "kernels/select/sample.h"

namespace edgekv::gpu {

// All pointers are to device memory. List l = (stream * n_tokens + token) * n_head_kv + head; `stream` counts in the graph.
struct SampleBatch {
    int n_streams, first_stream;
    int n_tokens;  // of one stream
    int n_head_kv;

    const Sight * sight; // [stream * n_tokens + token][sight_stride]
    size_t sight_stride;

    int32_t * rows;    // out [list][stride], ascending cells
    size_t stride;     // at least 64 * n_groups
    int32_t * n_rows;  // out [list]
    SampleTotals * totals;  // [n_head_kv] added to; or null

    int group;
    int n_groups;  // in view of one stream

    Shares shares;       // [list][group] rows, as launch_sketch_scan() leaves them
    const float * sinks; // [n_head_kv * group], or null
    float resolution;
    int exact_tokens;           // a token that sees at most so many cells reads them all
    const float * resolutions;  // [n_head_kv] of each head, 0: `resolution`; null: `resolution` for all
    // the walks' offsets follow from these: see draw.h
    int layer;
    const int64_t * k_idxs;     // [stream * n_tokens + token] the token's cell, counted through all streams of the cache
    const int32_t * positions;  // [stream of the cache][n_cells_stream]
    int n_cells_stream;         // of the cache
    float * weights;     // out, one for each row
    KeptRows kept;       // hot.entries may be null
    // sample_device_words_bytes() that no other kernel writes: zeros at first, then as the last launch on the stream left them, whatever its shape was
    unsigned long long * words;
};

void launch_sample(const SampleBatch & batch, Stream stream);

}  // namespace edgekv::gpu
