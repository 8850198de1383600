#include "kernels/simd/simd_portable.h"
// The headers below use its Simd.
#include "kernels/prompt/prompt_kernel.h"

namespace edgekv {
const PromptKernels kPromptPortable = {attend_item<KeysF32, ValuesF32>};

}  // namespace edgekv
