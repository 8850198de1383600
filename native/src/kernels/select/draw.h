// The start of a token's draw, the same to the bit on every device. Compiled separately in each translation unit, like all
// kernels: see attend_internal.h.
#pragma once

#include "kernels/layout.h"

#include <cstdint>

namespace edgekv {

constexpr int kChanceBits = 20;  // chances are multiples of 2^-20

// This part of the resolution is spread evenly over the cells that a token sees, as a floor under their chances. It accounts for some 4 % of the
// drawn rows (measured at 7,000 tokens), whose number is below the resolution because no chance exceeds 1.
constexpr double kEvenShare = 1.0 / 128.0;

namespace {

// The begin of a walk, in [0, 2^20). It follows from the place in the conversation, so it needs no state and does not depend on the places
// of cells. It differs between tokens, so no cell is passed over for ever. `layer`: index among the hooked layers; `head`: KV head.
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
