#include "kernels/simd/simd_avx2.h"
// The headers below use its Simd.
#include "kernels/prompt/prompt_kernel.h"

namespace edgekv {
const PromptKernels kPromptAvx2 = {attend_item<KeysF32, ValuesF32>};

}  // namespace edgekv
