#include "kernels/simd/simd_avx512.h"
// The headers below use its Simd.
#include "kernels/prefill/prompt_bf16.h"
#include "kernels/simd/tiles_amx.h"

namespace edgekv {
namespace {

void attend(const PromptProblem & problem, const PromptPlan & plan, int item, char * scratch) {
    const TileConfig config;
    ItemRun<KeysTiles<AmxTiles>, ValuesTiles<AmxTiles>>(problem, plan, item, scratch).run();
}

}  // namespace

const PromptKernels kPromptAmx = {attend};

}  // namespace edgekv
