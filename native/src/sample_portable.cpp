#include "simd_portable.h"
// the header below uses its Simd
#include "sample_kernel.h"

namespace edgekv {

const SampleFn kSamplePortable = sample;

}  // namespace edgekv
