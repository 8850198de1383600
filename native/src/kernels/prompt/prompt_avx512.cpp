#include "kernels/simd/simd_avx512.h"
// The headers below use its Simd.
#include "kernels/prompt/prompt_kernel.h"

namespace edgekv {
const PromptKernels kPromptAvx512 = {attend_item<KeysF32, ValuesF32>};

}  // namespace edgekv
