#include "simd_portable.h"
// the headers below use its Simd
#include "sketch_build.h"
#include "sketch_scan.h"

namespace edgekv {

const SketchKernels kSketchPortable = {build, prepare, scan};

}  // namespace edgekv
