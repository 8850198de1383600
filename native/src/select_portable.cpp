#include "simd_portable.h"
// the headers below use its Simd
#include "select_internal.h"
#include "select_kernel.h"

namespace edgekv {

const SelectFn kSelectPortable = select;

}  // namespace edgekv
