// Masked cells stay untouched, even if V holds infinities or NaN there.
//
// The products take a weight for each query and cell, which is zero for a cell that the query does not see. Zero times an infinity or a NaN is a
// NaN. So if the queries of an item see different cells of a block, the product leaves out the cells with such values. They are added afterwards,
// for the queries that see them.
#pragma once

#include <string.h>

#include "kernels/prefill/prompt_products.h"
#include "kernels/prefill/prompt_sight.h"

namespace edgekv {
namespace {

// Whether every token of the item sees all of the block's wanted cells.
inline bool all_see(const ItemScope & s, const BlockSight * sights, int n_blocks, uint64_t wanted) {
    for (int b = 0; b < n_blocks; ++b) {
        if (sights[b].any != wanted) {
            return false;
        }
        for (int t = 0; t < s.tokens_of(b); ++t) {
            if (sights[b].cells[t] != wanted) {
                return false;
            }
        }
    }
    return true;
}

// The wanted cells whose rows hold an infinity or a NaN.
inline uint64_t wild_cells(const Cells & cells) {
    const bool blocks = in_blocks(cells.type);
    const int n = blocks ? cells.head_dim / kBlock : cells.head_dim, step = blocks ? block_bytes(cells.type) : 2;
    uint64_t wild = 0;
    for (uint64_t left = cells.wanted; left != 0; left &= left - 1) {
        const int cell = __builtin_ctzll(left);
        const char * const row = cells.row(cell);
        unsigned any = 0;
        for (int i = 0; i < n; ++i) {
            uint16_t half;
            memcpy(&half, row + i * step, 2);
            any |= (half & 0x7c00) == 0x7c00;
        }
        wild |= static_cast<uint64_t>(any) << cell;
    }
    return wild;
}

// Adds wild cells to a panel's sums [channels][kLanes]. Their weights are in the form that `Values` gave them.
template <class Values>
void add_wild(const ItemScope & s, int panel, const BlockSight & sight, const Cells & cells, uint64_t wild, const float * weights, float * acc) {
    if (sight.any == 0) {
        return;
    }
    alignas(64) float row[kMaxHeadDim];
    for (uint64_t left = wild; left != 0; left &= left - 1) {
        const int cell = __builtin_ctzll(left);
        const int last = cells.head_dim - kLanes;
        for (int i = 0; i < cells.head_dim; i += kLanes) {
            const int at = i < last ? i : last;
            Simd::store(row + at, load_channels<true>(cells.type, cells.row(cell), at, cells.head_dim));
        }
        for (int r = 0; r < kLanes; ++r) {
            const int t = (panel % s.block_panels * kLanes + r) / s.plan.group;
            if (t >= s.tokens_of(panel / s.block_panels) || (sight.cells[t] >> cell & 1) == 0) {
                continue;
            }
            const float weight = Values::weight(weights, cell, r);
            for (int d = 0; d < cells.head_dim; ++d) {
                acc[d * kLanes + r] += weight * row[d];
            }
        }
    }
}

}  // namespace
}  // namespace edgekv
