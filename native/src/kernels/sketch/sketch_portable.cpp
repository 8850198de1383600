#include "kernels/simd/simd_portable.h"
// The headers below use its Simd.
#include "kernels/sketch/sketch_scan.h"

namespace edgekv {

const SketchKernels kSketchPortable = {build, prepare, scan, scan_keys};

}  // namespace edgekv
