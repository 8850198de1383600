#include "simd_portable.h"
// the headers below use its Simd
#include "attend_kernel.h"
#include "attend_merge.h"

namespace edgekv {

const AttendKernels kAttendPortable = {process, merge};

}  // namespace edgekv
