// The kernel of tiles with tiles in plain C++, for processors that have AVX-512 and no AMX.
#include "kernels/simd/simd_avx512.h"
// the headers below use its Simd
#include "kernels/prefill/prompt_bf16.h"
#include "tiles_emulated.h"

namespace edgekv {
namespace {

void attend(const PromptProblem & problem, const PromptPlan & plan, int item, char * scratch) {
    ItemRun<KeysTiles<EmulatedTiles>, ValuesTiles<EmulatedTiles>>(problem, plan, item, scratch).run();
}

}  // namespace

extern const PromptKernels kPromptEmulated;
const PromptKernels kPromptEmulated = {attend};

}  // namespace edgekv
