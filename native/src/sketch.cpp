// Dispatch of the sketch kernels.
#include "sketch.h"

#include <cstring>

#include "isa_dispatch.h"
#include "sketch_internal.h"
#include "subnormals.h"

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

void sketch_build(const Sketch & sketch, const SketchKeys & keys, int head, int strip, uint32_t valid, Isa isa) {
    const SketchLayout layout = sketch_layout(sketch.kind, sketch.head_dim, sketch.n_strips);
    kernels(isa).build(sketch, layout, keys, head, strip, valid);
}

size_t sketch_query_bytes(SketchKind, int head_dim, int group) {
    return static_cast<size_t>(group) * (kRowQ + head_dim * 3);
}

void sketch_query_prepare(const Sketch & sketch, const SketchQuery & query, char * prepared, Isa isa) {
    const SubnormalsAreZero fast;
    kernels(isa).prepare(sketch, query, prepared);
}

void sketch_scan(const Sketch & sketch, const SketchQuery & query, const char * prepared, int head, int first_block, int n_blocks,
                 float * estimates, size_t stride, Isa isa) {
    const SubnormalsAreZero fast;
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
