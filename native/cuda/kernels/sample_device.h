// Sampling on the device: sample_rows() of sample.h for all streams, query tokens and KV heads of a layer in one launch. A probability is rounded to
// the nearest step of 2^-20, so a row may differ from the specification's if its page's sum comes that close to a mark. The same inputs
// give the same bytes.
#pragma once

#include "cuda/kernels/hot_rows.h"
#include "cuda/kernels/list_batch.h"

namespace edgekv::gpu {

// The stride is at least 64 * n_groups.
struct SampleBatch : ListBatch {
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
