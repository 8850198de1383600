// Which blocks of 64 cells an item of a sparse prompt attends: the ones that its queries need, by the estimates of the sketches.
#pragma once

#include "kernels/prompt/prompt.h"
#include "kernels/sketch/sketch.h"

namespace edgekv {

constexpr int kSampledTokens = 8;         // one of so many query tokens is asked
constexpr int kSparsePromptCells = 2048;  // of a view; shorter ones are attended whole, where there is little to leave out
constexpr int kNewestTokens = 512;        // before the item's first token, always attended

static_assert(kGroupCells == kPromptCells, "a block has a sketch");

// Adds a query row's estimated share of each block, which come to 1. What a scan left of it: a block's largest logit (-inf: it sees
// nothing there), and the sum of its exponentials relative to that.
void add_block_shares(const float * tops, const float * sums, int n_blocks, float * shares);

// Chooses what is certain, then the blocks with the largest shares until `coverage` (0 to 1) of all shares is reached. chosen[n_blocks]
// becomes 1 or 0; blocks with a share of 0 that are not certain are not chosen. `order`: room for n_blocks. Returns how many are chosen.
int choose_blocks(const float * shares, const uint8_t * certain, int n_blocks, float coverage, int32_t * order, uint8_t * chosen);

}  // namespace edgekv
