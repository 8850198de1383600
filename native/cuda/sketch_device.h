// Sketches on the device: rebuilding stale strips and estimating all strips for a step's queries. Layout of a sketch and values
// are those of native/src/sketch.h, which is the specification.
#pragma once

#include "sketch.h"
#include "step_state.h"

namespace edgekv::gpu {

// Sketches of one layer, of all streams of the cache or of the view.
struct SketchArray {
    SketchKind kind;  // not none
    int head_dim, n_head_kv;
    int n_strips;         // of a stream
    char * data;          // first stream; 64-byte aligned, zero before the first build
    size_t stream_bytes;  // from a stream to the next; a multiple of 64, at least sketch_bytes()
};

// ---- build -------------------------------------------------------------------------------------------------------------------

// As the host plane's: cells whose K is not what the sketch was built from. `stream` counts from the first of the SketchArray.
struct StaleStrip {
    int32_t stream, strip;
    uint32_t valid;  // a bit for each cell that holds a key; 0: the strip becomes empty
};

struct SketchBuildArgs {
    SketchArray sketches;
    CellType k_type;
    const char * k;  // cell 0 of the first stream, head 0: home, which is read through the link, or a copy of the same layout
    size_t stride_cell, stride_head, stride_stream;  // bytes
    const StaleStrip * stale;  // device memory, each strip at most once
    const int * n_stale;       // device memory: StepState::n_stale
    int n_expected;            // stale strips that a step of this shape usually has: sizes the launch; any number is served
    // Copies of pages in the arena are read instead of `k` where slots say so (see StoreSlots). data null: none.
    const char * arena;
    size_t slot_bytes;
    const int32_t * slots;  // [n_head_kv][slots_stride], the page p of stream s at s * pages_per_stream + p; -1: no slot
    size_t slots_stride;
    int page_tokens, pages_per_stream;
};

// Writes the bytes that sketch_build() writes. Every operation on floats is an IEEE one of its own (the _rn intrinsics, which are
// never contracted); the source must not be compiled with -ftz=true or -use_fast_math.
void launch_sketch_build(const SketchBuildArgs & args, Stream stream);

// ---- scan --------------------------------------------------------------------------------------------------------------------

struct SketchScanArgs {
    SketchArray sketches;  // data: of the view's first stream
    int n_streams, n_tokens, group;
    int n_blocks;   // blocks [0, n_blocks) of 16 strips
    const char * q;  // f32 [n_streams * n_tokens][n_head_kv * group][head_dim], device memory; strides in bytes
    size_t q_stride_token, q_stride_head;
    float scale, softcap;  // as in AttendProblem
    float * estimates;     // [n_streams][n_tokens][n_head_kv][group][stride]
    size_t stride;         // floats, at least n_blocks * 16

    // Heads take turns (see scans_now) where a step has one token and one stream; otherwise reselect is taken for 1. The
    // estimates of a head that does not scan are left as they are.
    const StepState * state;  // device memory; may be null with reselect 1
    int reselect;
    uint32_t first_turn;  // of head 0
};

// Estimates as sketch_scan() defines them: natural log (box: the bound), -inf for empty strips and past n_strips. The sums of
// products are the same integers as the CPU's; what is left are the roundings of the log-sum-exp: an estimate differs from the
// CPU's by no more than 2e-4 + 2^-21 of the largest possible logit. The source must not be compiled with -use_fast_math.
void launch_sketch_scan(const SketchScanArgs & args, Stream stream);

}  // namespace edgekv::gpu
