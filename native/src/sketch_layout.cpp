// Layout of the sketches, the same on every plane.
#include <cassert>

#include "sketch.h"
#include "sketch_internal.h"

namespace edgekv {

SketchLayout sketch_layout(SketchKind kind, int head_dim, int n_strips) {
    assert(kind != SketchKind::none && head_dim % 4 == 0);
    SketchLayout layout{};
    layout.n_scales = kind == SketchKind::box ? 2 : 3;
    layout.params_offset = layout.n_scales * kVectorBytes;
    layout.codes_offset = layout.params_offset + head_dim / 4 * 2 * kVectorBytes;
    layout.key_vectors = kind == SketchKind::box ? 0 : kind == SketchKind::b1 ? (head_dim + 31) / 32 : (head_dim + 15) / 16;
    layout.block_bytes = layout.codes_offset + kSketchStripCells * layout.key_vectors * kVectorBytes;
    layout.n_blocks = (n_strips + kSketchBlockStrips - 1) / kSketchBlockStrips;
    return layout;
}

size_t sketch_bytes(SketchKind kind, int head_dim, int n_head_kv, int n_strips) {
    if (kind == SketchKind::none) {
        return 0;
    }
    const SketchLayout layout = sketch_layout(kind, head_dim, n_strips);
    return static_cast<size_t>(n_head_kv) * layout.n_blocks * layout.block_bytes;
}

}  // namespace edgekv
