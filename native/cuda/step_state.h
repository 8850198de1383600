// What changes from step to step without changing the graph: written by the host before a step, read by its kernels.
#pragma once

#include "gpu.h"

namespace edgekv::gpu {

struct StepState {
    uint32_t n_ubatch;  // counts the ubatches; heads take turns by it
    int n_stale;        // entries of the list of stale strips
    float threshold;    // pooled budget: the value from which a page is taken
    int scans_all;      // not 0: every head scans, whoever's turn it is
    int count_values;   // not 0: values of pages are counted
    int n_tokens;       // query tokens of a stream
};

// Whether a head scans its sketches in this step or keeps what its last scan found. turn = row * heads of a row + head, as on the
// CPU; reselect 1: every step. Scan and selection have to ask the same question.
__device__ inline bool scans_now(const StepState & state, uint32_t turn, int reselect) {
    return reselect <= 1 || state.scans_all != 0 ||
           (static_cast<uint64_t>(state.n_ubatch) + turn) % static_cast<uint64_t>(reselect) == 0;
}

}  // namespace edgekv::gpu
