// See attention/cuda/trial.h. False, with last_error(): a launch failed, or there is no memory.
#pragma once

#include "attention/cuda/trial.h"

namespace edgekv::gpu {

bool try_attend(int index, const AttendTrial & trial, TrialRuns & seen);
bool try_store(int index, StoreTrial & trial, TrialRuns & seen);

}  // namespace edgekv::gpu
