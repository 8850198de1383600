#include "kernels/simd/simd_avx2.h"
// The headers below use its Simd.
#include "kernels/attend/attend_rows.h"

namespace edgekv {

const AttendKernels kAttendAvx2 = {process, finish, observe};

}  // namespace edgekv
