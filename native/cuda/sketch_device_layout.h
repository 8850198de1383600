// The layout of sketches (native/src/sketch_internal.h), for both sides of a launch.
#pragma once

#include "sketch_device.h"
#include "sketch_internal.h"

namespace edgekv::gpu {
namespace {

// What sketch_layout() computes, which belongs to the host plane's library.
inline SketchLayout device_layout(const SketchArray & sketches) {
    const int dim = sketches.head_dim;
    const bool box = sketches.kind == SketchKind::box;
    const int per_vector = sketches.kind == SketchKind::b1 ? 32 : 16;  // channels
    SketchLayout layout{};
    layout.n_scales = box ? 2 : 3;
    layout.params_offset = layout.n_scales * kVectorBytes;
    layout.codes_offset = layout.params_offset + dim / 2 * kVectorBytes;
    layout.key_vectors = box ? 0 : (dim + per_vector - 1) / per_vector;
    layout.block_bytes = layout.codes_offset + kSketchStripCells * layout.key_vectors * kVectorBytes;
    layout.n_blocks = (sketches.n_strips + kSketchBlockStrips - 1) / kSketchBlockStrips;
    return layout;
}

}  // namespace
}  // namespace edgekv::gpu
