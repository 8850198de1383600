// What changes from step to step without changing the graph: written by the host before a step, read by its kernels.
#pragma once

#include "cuda/gpu.h"

namespace edgekv::gpu {

struct StepState {
    uint32_t n_ubatch;  // counts the ubatches; heads take turns by it
    int n_stale;        // entries of the list of stale groups
};

}  // namespace edgekv::gpu
