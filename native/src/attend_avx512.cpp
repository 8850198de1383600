#include "simd_avx512.h"
// the headers below use its Simd
#include "attend_rows.h"

namespace edgekv {

const AttendKernels kAttendAvx512 = {process, finish, observe};

}  // namespace edgekv
