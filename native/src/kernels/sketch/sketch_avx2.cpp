#include "kernels/simd/simd_avx2.h"
// The headers below use its Simd.
#include "kernels/sketch/sketch_scan.h"

namespace edgekv {

const SketchKernels kSketchAvx2 = {build, prepare, scan, scan_keys};

}  // namespace edgekv
