// Numbers of a step that its graph does not show: the host writes them before the step, and its kernels read them.
#pragma once

#include "cuda/gpu.h"

namespace edgekv::gpu {

struct StepState {
    uint32_t n_ubatch;  // counts the ubatches; heads take turns by it
    int n_stale;        // entries of the list of stale groups
};

}  // namespace edgekv::gpu
