#include "simd_avx2.h"
// the headers below use its Simd
#include "attend_kernel.h"
#include "attend_merge.h"
#include "attend_observe.h"

namespace edgekv {

const AttendKernels kAttendAvx2 = {process, merge, observe};

}  // namespace edgekv
