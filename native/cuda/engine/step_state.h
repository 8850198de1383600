// Numbers of a step that its graph does not hold. The host writes them before the step; the step's kernels read them.
#pragma once

#include "cuda/gpu.h"

namespace edgekv::gpu {

struct StepState {
    uint32_t n_ubatch;  // number of the ubatch; it decides which heads' turn it is
    int n_stale;        // entries of the list of stale groups
};

}  // namespace edgekv::gpu
