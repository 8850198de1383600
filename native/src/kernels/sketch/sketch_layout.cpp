// Layout of the sketches, the same on every plane.
#include <cassert>

#include "kernels/sketch/sketch.h"
#include "kernels/sketch/sketch_internal.h"

namespace edgekv {

SketchLayout sketch_layout(int head_dim, int n_groups) {
    assert(head_dim % 8 == 0 && head_dim <= kMaxHeadDim);
    SketchLayout layout{};
    layout.padded = (head_dim + 63) / 64 * 64;
    layout.n_dwords = (head_dim + 31) / 32 * 3;
    layout.code_bytes = kGroupCells / kVectorCells * layout.n_dwords * kVectorBytes;
    layout.param_bytes = kParamHeader + 2 * layout.padded;
    layout.params_offset = static_cast<size_t>(n_groups) * static_cast<size_t>(layout.code_bytes);
    layout.head_bytes = (layout.params_offset + static_cast<size_t>(n_groups) * static_cast<size_t>(layout.param_bytes) + 63) / 64 * 64;
    return layout;
}

size_t sketch_bytes(int head_dim, int n_head_kv, int n_groups) {
    return static_cast<size_t>(n_head_kv) * sketch_layout(head_dim, n_groups).head_bytes;
}

std::array<SketchBytes, 2> sketch_bytes_of_groups(int head_dim, int n_groups, int head, int first, int end) {
    const SketchLayout layout = sketch_layout(head_dim, n_groups);
    const size_t begin = static_cast<size_t>(head) * layout.head_bytes;
    const auto   part  = [&](size_t at, int bytes) {
        return SketchBytes{ begin + at + static_cast<size_t>(first) * static_cast<size_t>(bytes),
                            static_cast<size_t>(end - first) * static_cast<size_t>(bytes) };
    };
    return { part(0, layout.code_bytes), part(layout.params_offset, layout.param_bytes) };
}

}  // namespace edgekv
