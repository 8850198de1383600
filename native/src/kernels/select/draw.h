// What the draw of a token's rows begins with, the same to the bit wherever it runs. Compiled anew in each translation unit, like all of
// the kernels: see attend_internal.h.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#    define EDGEKV_HOST_AND_DEVICE __host__ __device__
#else
#    define EDGEKV_HOST_AND_DEVICE
#endif

namespace edgekv {

constexpr int kChanceBits = 20;  // chances are multiples of 2^-20

// This part of the resolution is spread evenly over the cells that a token sees: a floor under their chances. Of what is drawn, which is
// less than the resolution as no chance is above 1, it is some 4 % (measured at 7,000 tokens).
constexpr double kEvenShare = 1.0 / 128.0;

namespace {

// Where a walk begins, in [0, 2^20): from what the conversation says, so that it needs no state and does not depend on where cells lie, and
// another one for each token, so that none is passed over for ever. `layer`: its row among those that are served; `head`: KV head.
EDGEKV_HOST_AND_DEVICE inline int32_t walk_offset(int layer, int head, int32_t position) {
    uint32_t x = static_cast<uint32_t>(position) * 0x9e3779b1u + static_cast<uint32_t>(layer) * 0x85ebca77u + static_cast<uint32_t>(head) * 0xc2b2ae3du;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return static_cast<int32_t>((x ^ x >> 16) >> (32 - kChanceBits));
}

// The floor under the chances of `n_visible` cells, in steps of 2^-20, at least one.
EDGEKV_HOST_AND_DEVICE inline int32_t least_chance(float resolution, int64_t n_visible) {
    constexpr int32_t one = 1 << kChanceBits;
    const double steps = static_cast<double>(resolution) * kEvenShare * one / static_cast<double>(n_visible > 0 ? n_visible : 1) + 0.5;
    return steps >= one ? one : steps >= 2.0 ? static_cast<int32_t>(steps) : 1;
}

}  // namespace
}  // namespace edgekv
