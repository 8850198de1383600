// Stores the K and V rows of a ubatch into home (pinned host memory, written through the link), and on request into a second
// place and into the arena's slots, and builds the sketches of groups that filled up or changed. One launch serves K and V of all tokens and heads,
// and all such groups; it may scan the sketches too.
#pragma once

#include "cuda/kernels/sketch_device.h"

namespace edgekv::gpu {

// K or V. Home's rows are counted through all streams.
struct StoreRows {
    HeadRows src;
    const int64_t * rows;  // [n_tokens] in device memory: each token's row in home; no two are equal
    CellType type;
    CellRows home;
    PieceRows second;  // another place (staging)
};

struct StoreArgs {
    int head_dim, n_head_kv;  // as attend_supports(); in blocks: head_dim a multiple of 32
    int n_tokens;             // any number; of all streams
    int cells_per_stream;     // of home
    StoreRows k, v;
    PageSlots arena;  // rows whose page has a slot are written there too
    SketchBuild build;
};

// Writes the same bits as ggml-cuda's GGML_OP_SET_ROWS. f16: rounded to nearest, ties to even. q8_0: d = max |x| / 127 in
// float, stored as f16; codes = x * (1 / d), rounded to nearest, ties away from zero. q4_0: d = x / -8 of the
// first x with the largest |x|; codes = x * (1 / d) + 8.5 in one rounding, cut off, at most 15. ggml-cuda is compiled with fast maths, so
// a GPU approximates both quotients and takes subnormals as zero; the emulated device rounds them correctly.
void launch_store(const StoreArgs & args, Stream stream);

// launch_store() and launch_sketch_scan() in one launch, for a step whose query tokens are all scanned together. Stream 0 of the view is `first_stream` of
// the store's arrays.
void launch_store_scan(const StoreArgs & store, const SketchScanArgs & scan, int first_stream, Stream stream);

}  // namespace edgekv::gpu
