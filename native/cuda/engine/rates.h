// The machine's transfer rates, measured once (edgekv_measure_rates). They decide the cheaper way to a page.
#pragma once

#include <cstddef>

namespace edgekv::gpu {

struct Rates {                  // bytes per second
    double link_copy     = 0;   // pinned host memory to the device, one large copy
    double link_gather   = 0;   // the same, page by page, by a kernel that reads host memory in place
    double link_rows     = 0;   // the same, row by row: of 128, 136, 256 and 272 bytes, the slowest
    double link_pageable = 0;   // one large copy from memory that is not pinned
    double vram          = 0;   // device memory, read
    double dram          = 0;   // host memory, read by the processor's cores
    double launch_us     = 0;   // microseconds from launch to launch
};

// Takes some seconds on a GPU, up to 512 MiB each of pinned and of device memory, less if less is free, and up to host_bytes more of pinned
// memory, 16 GiB at most: pages and rows of a home lie as far apart. Each rate is the best of several runs: other work on the machine only slows
// them. False, with last_error(): even a small buffer failed.
bool measure_rates(int index, size_t host_bytes, Rates & out);

}  // namespace edgekv::gpu
