// Dispatch of the sketch kernels.
#include "kernels/sketch/sketch.h"

#include "kernels/simd/isa_dispatch.h"
#include "kernels/sketch/sketch_internal.h"
#include "kernels/simd/subnormals.h"

namespace edgekv {
namespace {

constexpr KernelTables<SketchKernels> kTables = EDGEKV_TABLES(kSketch);

const SketchKernels & kernels(Isa isa) { return kernels_for(isa, kTables); }

}  // namespace

void sketch_build(const Sketch & sketch, const SketchKeys & keys, int head, int group, uint64_t valid, Isa isa) {
    kernels(isa).build(sketch, sketch_layout(sketch.head_dim, sketch.n_groups), keys, head, group, valid);
}

size_t sketch_query_bytes(int head_dim, int n_queries) {
    return static_cast<size_t>(n_queries) * static_cast<size_t>(kQueryOffset + sketch_layout(head_dim, 1).padded * 3);
}

void sketch_query_prepare(const Sketch & sketch, const SketchQuery & query, char * prepared, Isa isa) {
    const SubnormalsAreZero fast;
    kernels(isa).prepare(sketch.head_dim, sketch_layout(sketch.head_dim, 1).padded, query, prepared);
}

void sketch_scan(const Sketch & sketch, const SketchQuery & query, const char * prepared, int head, int first, int n, const Shares & out,
                 Isa isa) {
    const SubnormalsAreZero fast;
    kernels(isa).scan(sketch, sketch_layout(sketch.head_dim, sketch.n_groups), query, prepared, head, first, n, out);
}

void sketch_scan_keys(const SketchKeys & keys, int head_dim, const SketchQuery & query, int head, int group, const Shares & out, Isa isa) {
    const SubnormalsAreZero fast;
    kernels(isa).scan_keys(keys, head_dim, query, head, group, out);
}

const SketchKernels * sketch_kernels(const char * name) { return kernels_by_name(name, kTables); }

}  // namespace edgekv
