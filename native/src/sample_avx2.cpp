#include "simd_avx2.h"
// the header below uses its Simd
#include "sample_kernel.h"

namespace edgekv {

const SampleFn kSampleAvx2 = sample;

}  // namespace edgekv
