// Dispatch of sampling.
#include "kernels/select/sample.h"

#include "kernels/select/sample_internal.h"
#include "kernels/simd/isa_dispatch.h"
#include "kernels/simd/subnormals.h"

namespace edgekv {

size_t sample_scratch_bytes(int n_groups, int group) {
    return static_cast<size_t>((n_groups + 15) / 16 * 16) * static_cast<size_t>(group) * sizeof(float);
}

#if EDGEKV_X86
static constexpr KernelTables<SampleFn> kTables = {
    &kSamplePortable, EDGEKV_BUILT(avx2, kSampleAvx2), EDGEKV_BUILT(avx2, kSampleAvx2), EDGEKV_BUILT(avx512, kSampleAvx512),
    EDGEKV_BUILT(avx512, kSampleAvx512)};
#elif EDGEKV_ARM64
static constexpr KernelTables<SampleFn> kTables = {&kSamplePortable, &kSampleNeon, &kSampleNeon};
#else
static constexpr KernelTables<SampleFn> kTables = {&kSamplePortable};
#endif

SampleResult sample_rows(const SampleProblem & problem, Isa isa) {
    const SubnormalsAreZero fast;
    return kernels_for(isa, kTables)(problem);
}

}  // namespace edgekv
