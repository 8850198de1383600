// Dispatch of sampling.
#include "kernels/select/sample.h"

#include "kernels/select/sample_internal.h"
#include "kernels/simd/subnormals.h"

namespace edgekv {

size_t sample_scratch_bytes(int n_groups, int group) {
    return static_cast<size_t>((n_groups + 15) / 16 * 16) * static_cast<size_t>(group) * sizeof(float);
}

SampleResult sample_rows(const SampleProblem & problem, Isa isa) {
    const SubnormalsAreZero fast;
#if defined(__x86_64__) || defined(_M_X64)
    switch (isa) {
        case Isa::amx:
        case Isa::avx512bf16:
        case Isa::avx512: return kSampleAvx512(problem);
        case Isa::avx2: return kSampleAvx2(problem);
        case Isa::portable: break;
    }
#endif
    (void) isa;
    return kSamplePortable(problem);
}

}  // namespace edgekv
