#include "simd_avx512.h"
// the headers below use its Simd
#include "select_internal.h"
#include "select_kernel.h"

namespace edgekv {

const SelectFn kSelectAvx512 = select;

}  // namespace edgekv
