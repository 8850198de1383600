// The starts of a token's walks, the same to the bit on every device. Compiled separately in each translation unit, like all
// kernels: see attend_internal.h.
#pragma once

#include "kernels/layout.h"

#include <cstdint>

namespace edgekv {

constexpr int kChanceBits = 20;  // chances are multiples of 2^-20
constexpr int kWalkCells = 16;   // cells of a walk: the least page

// A token's step on the circle of 2^32. All numbers come round once in 512.618 tokens: because of that fraction, the golden ratio's, a second round
// falls between the numbers of the first, and so on. So no cell is passed over for ever, however small its chance is.
constexpr uint32_t kTurn = 8378495;

// This part of the resolution is spread evenly over the cells that a token sees, as a floor under their chances. It accounts for some 4 % of the
// drawn rows (measured at 7,000 tokens), whose number is below the resolution because no chance exceeds 1.
constexpr double kEvenShare = 1.0 / 128.0;

namespace {

// What a query token adds to the numbers of all pages of a KV head. `layer`: index among the hooked layers; `head`: KV head; `position`: the query
// token's.
EDGEKV_HOST_AND_DEVICE inline uint32_t page_turn(int layer, int head, int32_t position) {
    uint32_t x = static_cast<uint32_t>(layer) * 0x85ebca77u + static_cast<uint32_t>(head) * 0xc2b2ae3du;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return (x ^ x >> 16) + static_cast<uint32_t>(position) * kTurn;
}

// The begin of a page's walk, in [0, 2^20): the page's own number, which spreads evenly over neighbouring pages (multiples of the golden ratio), and
// the token's turn. It follows from places in the conversation, so it needs no state and does not depend on the places of cells. `first`: the
// position of the page's first cell.
EDGEKV_HOST_AND_DEVICE inline int32_t walk_offset(uint32_t turn, int32_t first) {
    return static_cast<int32_t>((static_cast<uint32_t>(first >> 4) * 0x9e3779b1u + turn) >> (32 - kChanceBits));
}

// The floor under the chances of `n_visible` cells, in steps of 2^-20, at least one. A token that sees at most `exact_tokens` reads them all.
EDGEKV_HOST_AND_DEVICE inline int32_t least_chance(float resolution, int64_t n_visible, int exact_tokens) {
    constexpr int32_t one = 1 << kChanceBits;
    const int64_t n_cells = n_visible > 0 ? n_visible : 1;
    if (n_cells <= exact_tokens) {
        return one;
    }
    const double steps = static_cast<double>(resolution) * kEvenShare * one / static_cast<double>(n_cells) + 0.5;
    return steps >= one ? one : steps >= 2.0 ? static_cast<int32_t>(steps) : 1;
}

}  // namespace
}  // namespace edgekv
