#include "simd_portable.h"
// the headers below use its Simd
#include "attend_kernel.h"
#include "attend_merge.h"
#include "attend_observe.h"

namespace edgekv {

const AttendKernels kAttendPortable = {process, merge, observe};

}  // namespace edgekv
