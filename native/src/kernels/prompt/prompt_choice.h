// Which blocks of 64 cells an item of a sparse prompt attends: those that matter to its queries for certain, the others by chance and with a
// weight, by the estimates of the sketches.
#pragma once

#include "kernels/prompt/prompt.h"
#include "kernels/sketch/sketch.h"

namespace edgekv {

constexpr int kSampledTokens = 4;         // one of this number of query tokens is asked
constexpr int kSparsePromptCells = 2048;  // of a view; shorter ones are attended whole, where there is little to leave out
constexpr int kNewestTokens = 512;        // before the item's first token, always attended
// A block that some asked query sees is drawn with this chance at least: a query that was not asked may need it, and its weight stays bounded.
constexpr float kLeastChance = 1.0f / 32.0f;

static_assert(kGroupCells == kPromptCells, "a block has a sketch");

// Adds the squares of a query's estimated shares of each block, which come to 1. What a scan left of it: a block's largest logit (-inf:
// it sees nothing there), and the sum of its exponentials relative to that.
void add_square_shares(const float * tops, const float * sums, int n_blocks, float * squares);

// Draws blocks, with the chance p = min(1, resolution * r) of each, where r is the root of its mean square share over `n_queries` queries: for a
// number of blocks this makes the sum over queries of the variance share^2 (1/p - 1) the least. What is certain has p = 1; a block with no
// share has 0. The draw is systematic: block b is drawn where `offset` (0 to 1) and the chances up to b pass a whole number.
// raise[n_blocks] becomes log2(1/p), or negative where a block is not drawn. Returns how many are.
int draw_blocks(const float * squares, int n_queries, const uint8_t * certain, int n_blocks, float resolution, float offset, float * raise);

}  // namespace edgekv
