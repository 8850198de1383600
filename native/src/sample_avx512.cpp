#include "simd_avx512.h"
// the header below uses its Simd
#include "sample_kernel.h"

namespace edgekv {

const SampleFn kSampleAvx512 = sample;

}  // namespace edgekv
