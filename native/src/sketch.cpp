// Dispatch and layout of the sketches.
#include "sketch.h"

#include <cassert>
#include <cstring>

#include "isa_dispatch.h"
#include "sketch_internal.h"

namespace edgekv {
namespace {

const SketchKernels & kernels(Isa isa) {
#if EDGEKV_X86
    return kernels_for(isa, kSketchPortable, kSketchAvx2, kSketchAvx512, kSketchAvx512Vnni);
#else
    (void) isa;
    return kSketchPortable;
#endif
}

}  // namespace

SketchLayout sketch_layout(SketchKind kind, int head_dim, int n_strips) {
    assert(kind != SketchKind::none && attend_supports(head_dim, CellType::f16, CellType::f16));
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

void sketch_build(const Sketch & sketch, const SketchKeys & keys, int head, int strip, uint32_t valid, Isa isa) {
    const SketchLayout layout = sketch_layout(sketch.kind, sketch.head_dim, sketch.n_strips);
    kernels(isa).build(sketch, layout, keys, head, strip, valid);
}

size_t sketch_query_bytes(SketchKind, int head_dim, int group) {
    return static_cast<size_t>(group) * (kRowQ + head_dim * 3);
}

void sketch_query_prepare(const Sketch & sketch, const SketchQuery & query, char * prepared, Isa isa) {
    kernels(isa).prepare(sketch, query, prepared);
}

void sketch_scan(const Sketch & sketch, const SketchQuery & query, const char * prepared, int head, int first_block, int n_blocks,
                 float * estimates, size_t stride, Isa isa) {
    const SketchLayout layout = sketch_layout(sketch.kind, sketch.head_dim, sketch.n_strips);
    kernels(isa).scan(sketch, layout, query, prepared, head, first_block, n_blocks, estimates, stride);
}

const SketchKernels * sketch_kernels(const char * name) {
#if EDGEKV_X86
    return kernels_by_name(name, kSketchPortable, kSketchAvx2, kSketchAvx512, kSketchAvx512Vnni);
#else
    return std::strcmp(name, "portable") == 0 ? &kSketchPortable : nullptr;
#endif
}

}  // namespace edgekv
