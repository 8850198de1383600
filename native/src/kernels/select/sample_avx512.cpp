#include "kernels/simd/simd_avx512.h"
// The header below uses its Simd.
#include "kernels/select/sample_kernel.h"

namespace edgekv {

const SampleFn kSampleAvx512 = sample;

}  // namespace edgekv
