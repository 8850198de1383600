#include "kernels/simd/simd_avx512.h"
// The headers below use its Simd.
#include "kernels/attend/attend_rows.h"

namespace edgekv {

const AttendKernels kAttendAvx512Vnni = {process, finish, observe};

}  // namespace edgekv
