#include "simd_portable.h"
// the headers below use its Simd
#include "attend_rows.h"

namespace edgekv {

const AttendKernels kAttendPortable = {process, finish, observe};

}  // namespace edgekv
