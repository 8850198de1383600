// Sketches on the device: launch_store() builds them for stale groups, and they are scanned for the shares of all cells for a step's queries. Their
// layout and values are those of kernels/sketch/sketch.h, the specification.
#pragma once

#include "cuda/kernels/hot_rows.h"
#include "cuda/kernels/places.h"
#include "kernels/sketch/sketch.h"

namespace edgekv::gpu {

// The sketches of one layer, for all streams of the cache or of the view.
struct SketchArray {
    int head_dim, n_head_kv;
    int n_groups;         // of a stream
    char * data;          // first stream; 64-byte aligned
    size_t stream_bytes;  // from one stream to the next; a multiple of 64, at least sketch_bytes()
};

// Where keys lie: a page with a slot is read from the arena, any other from home.
struct SketchHome {
    CellType type;
    CellRows k;  // of the first stream: home, read through the link, or a copy of the same layout
    size_t stride_stream;
    bool brought;  // k lies on the device
    PageSlots arena;
};

// ---- build -------------------------------------------------------------------------------------------------------------------

// `stream` counts from the first of the SketchArray.
struct StaleGroup {
    int32_t stream, group;
    uint64_t valid;  // a bit for each cell that holds a key; 0: the group becomes zeros
};

// Stale groups that a launch_store() builds too. The bytes are those of sketch_build(). Every float operation is a separate IEEE one (the _rn intrinsics,
// which are never contracted); the source must not be compiled with -ftz=true or -use_fast_math.
struct SketchBuild {
    SketchArray sketches;
    SketchHome home;           // all keys but those that the same launch stores
    const StaleGroup * stale;  // device memory, each group at most once
    const int * n_stale;       // device memory: StepState::n_stale; null: nothing is built
    int n_expected;            // stale groups that a step of this shape usually has; it sizes the launch, which serves any number
    HotRows hot;     // copies of these groups' rows, which are forgotten; entries: null if there are none
};

// ---- scan --------------------------------------------------------------------------------------------------------------------

struct SketchScanArgs {
    SketchArray sketches;  // data: of the view's first stream
    SketchHome home;       // k, slots: of the view's first stream
    const int32_t * open;  // [n_streams][sketches.n_groups] not 0: the group has no sketch; its shares come from the keys themselves
    int n_streams, n_tokens, group;
    int n_groups;   // in view
    HeadRows q;     // [n_streams * n_tokens][n_head_kv * group][head_dim], device memory
    float scale, softcap;  // as in AttendProblem
    const Sight * sight;   // [n_streams][n_tokens][sight_stride]
    size_t sight_stride;
    Shares out;            // [n_streams][n_tokens][n_head_kv][group][stride] each
};

// Computes shares as sketch_scan() and sketch_scan_keys() define them. Without a softcap the exponents equal the CPU's up to the rounding
// of a few float operations.
void launch_sketch_scan(const SketchScanArgs & args, Stream stream);

}  // namespace edgekv::gpu
