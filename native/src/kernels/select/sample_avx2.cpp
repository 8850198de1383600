#include "kernels/simd/simd_avx2.h"
// The header below uses its Simd.
#include "kernels/select/sample_kernel.h"

namespace edgekv {

const SampleFn kSampleAvx2 = sample;

}  // namespace edgekv
