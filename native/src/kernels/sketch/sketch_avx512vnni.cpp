#include "kernels/simd/simd_avx512.h"
// The headers below use its Simd.
#include "kernels/sketch/sketch_scan.h"

namespace edgekv {

const SketchKernels kSketchAvx512Vnni = {build, prepare, scan, scan_keys};

}  // namespace edgekv
