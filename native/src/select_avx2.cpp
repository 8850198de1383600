#include "simd_avx2.h"
// the headers below use its Simd
#include "select_internal.h"
#include "select_kernel.h"

namespace edgekv {

const SelectFn kSelectAvx2 = select;

}  // namespace edgekv
