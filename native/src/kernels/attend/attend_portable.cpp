#include "kernels/simd/simd_portable.h"
// The headers below use its Simd.
#include "kernels/attend/attend_rows.h"

namespace edgekv {

const AttendKernels kAttendPortable = {process, finish, observe};

}  // namespace edgekv
