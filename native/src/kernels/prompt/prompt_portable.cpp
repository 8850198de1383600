#include "kernels/simd/simd_portable.h"
// The headers below use its Simd.
#include "kernels/prompt/prompt_kernel.h"

namespace edgekv {
namespace {

void attend(const PromptProblem & problem, const PromptPlan & plan, int item, char * scratch) {
    ItemRun<KeysF32, ValuesF32>(problem, plan, item, scratch).run();
}

}  // namespace

const PromptKernels kPromptPortable = {attend};

}  // namespace edgekv
