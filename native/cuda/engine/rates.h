// How fast the machine moves bytes, measured once (edgekv_measure_rates): which way to a page is the cheaper one.
#pragma once

namespace edgekv::gpu {

struct Rates {                  // bytes per second
    double link_copy     = 0;   // pinned host memory to the device, one large copy
    double link_gather   = 0;   // the same, page by page, by a kernel that reads host memory in place
    double link_pageable = 0;   // one large copy from memory that is not pinned
    double vram          = 0;   // device memory, read
    double dram          = 0;   // host memory, read by the processor's cores
    double launch_us     = 0;   // microseconds from launch to launch
};

// Takes about a second on a GPU, and up to 512 MiB of pinned and of device memory, less where less is free. Each rate is the best of several
// runs, because other work on the machine only makes them slower. False, with last_error(): not even a small buffer can be had.
bool measure_rates(int index, Rates & out);

}  // namespace edgekv::gpu
