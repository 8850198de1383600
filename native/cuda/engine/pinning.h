// What it takes to pin host memory by and by, as tokens come.
#pragma once

#include "edgekv_device.h"

namespace edgekv::gpu {

// Pins two neighbouring parts of n_bytes each, and takes the times. False, with last_error(): the system pins not even these.
bool time_pinning(int index, size_t n_bytes, edgekv_pinning & out);

}  // namespace edgekv::gpu
