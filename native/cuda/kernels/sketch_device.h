// Sketches on the device: building the groups that are stale, and the shares of all cells for a step's queries. Layout of a sketch and
// values are those of kernels/sketch/sketch.h, which is the specification.
#pragma once

#include "cuda/gpu.h"
#include "kernels/sketch/sketch.h"

namespace edgekv::gpu {

// Sketches of one layer, of all streams of the cache or of the view.
struct SketchArray {
    int head_dim, n_head_kv;
    int n_groups;         // of a stream
    char * data;          // first stream; 64-byte aligned
    size_t stream_bytes;  // from a stream to the next; a multiple of 64, at least sketch_bytes()
};

// Where keys lie: copies of pages in the arena are read instead of home where slots say so.
struct SketchHome {
    CellType type;
    const char * k;  // cell 0 of the first stream, head 0: home, which is read through the link, or a copy of the same layout
    size_t stride_cell, stride_head, stride_stream;  // bytes
    bool brought;        // it lies on the device
    const char * arena;  // null: none
    size_t slot_bytes;
    const int32_t * slots;  // [n_head_kv][slots_stride], the page p of stream s at s * pages_per_stream + p; negative: no slot
    size_t slots_stride;
    int page_tokens, pages_per_stream;
};

// ---- build -------------------------------------------------------------------------------------------------------------------

// `stream` counts from the first of the SketchArray.
struct StaleGroup {
    int32_t stream, group;
    uint64_t valid;  // a bit for each cell that holds a key; 0: the group becomes zeros
};

struct SketchBuildArgs {
    SketchArray sketches;
    SketchHome home;
    const StaleGroup * stale;  // device memory, each group at most once
    const int * n_stale;       // device memory: StepState::n_stale
    int n_expected;            // stale groups that a step of this shape usually has: sizes the launch; any number is served
};

// Writes the bytes that sketch_build() writes. Every operation on floats is an IEEE one of its own (the _rn intrinsics, which are
// never contracted); the source must not be compiled with -ftz=true or -use_fast_math.
void launch_sketch_build(const SketchBuildArgs & args, Stream stream);

// ---- scan --------------------------------------------------------------------------------------------------------------------

struct SketchScanArgs {
    SketchArray sketches;  // data: of the view's first stream
    SketchHome home;       // k, slots: of the view's first stream
    const int32_t * open;  // [n_streams][sketches.n_groups] not 0: the group has no sketch, its shares come from the keys themselves
    int n_streams, n_tokens, group;
    int n_groups;   // in view
    const char * q;  // f32 [n_streams * n_tokens][n_head_kv * group][head_dim], device memory; strides in bytes
    size_t q_stride_token, q_stride_head;
    float scale, softcap;  // as in AttendProblem
    const Sight * sight;   // [n_streams][n_tokens][sight_stride]
    size_t sight_stride;
    Shares out;            // [n_streams][n_tokens][n_head_kv][group][stride] each
};

// Shares as sketch_scan() and sketch_scan_keys() define them; without a softcap the exponents are the CPU's but for the roundings of
// a few float operations.
void launch_sketch_scan(const SketchScanArgs & args, Stream stream);

}  // namespace edgekv::gpu
