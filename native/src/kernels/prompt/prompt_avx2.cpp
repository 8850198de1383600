#include "kernels/simd/simd_avx2.h"
// The headers below use its Simd.
#include "kernels/prompt/prompt_kernel.h"

namespace edgekv {
namespace {

void attend(const PromptProblem & problem, const PromptPlan & plan, int item, char * scratch) {
    ItemRun<KeysF32, ValuesF32>(problem, plan, item, scratch).run();
}

}  // namespace

const PromptKernels kPromptAvx2 = {attend};

}  // namespace edgekv
