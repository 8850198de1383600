#include "kernels/simd/simd_portable.h"
// The header below uses its Simd.
#include "kernels/select/sample_kernel.h"

namespace edgekv {

const SampleFn kSamplePortable = sample;

}  // namespace edgekv
