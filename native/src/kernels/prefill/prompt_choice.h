// Chooses the blocks of 64 cells that an item of a sparse prompt attends, by the sketches' estimates: blocks that matter to its queries for
// certain, other blocks sampled, with a weight.
#pragma once

#include "kernels/prefill/prompt.h"
#include "kernels/sketch/sketch.h"

namespace edgekv {

constexpr int kSampledTokens = 4;         // one in so many query tokens is scanned
constexpr int kSparsePromptCells = 2048;  // shorter views have little to leave out and are attended whole
constexpr int kNewestTokens = 512;        // before the item's first token, always attended
// The least chance of a block that some scanned query sees. A query that was not scanned may need the block, and the floor bounds its weight.
constexpr float kLeastChance = 1.0f / 32.0f;

static_assert(kGroupCells == kPromptCells, "a block has a sketch");

// Adds the squares of a query's estimated shares of the blocks; the shares add up to 1. A scan gives a block's largest logit (-inf: the query
// sees nothing there), and the sum of its exponentials relative to that.
void add_square_shares(const float * tops, const float * sums, int n_blocks, float * squares);

// Draws each block with the chance p = min(1, resolution * r), where r is the root of its mean square share over `n_queries` queries. For a given
// number of blocks this minimises the sum over queries of the variance share^2 (1/p - 1). A certain block has p = 1; a block without share
// has 0. The draw is systematic: block b is drawn if `offset` (0 to 1) plus the chances up to b passes a whole number there.
// raise[n_blocks] becomes log2(1/p), or negative for a block that is not drawn. Returns the number of drawn blocks.
int draw_blocks(const float * squares, int n_queries, const uint8_t * certain, int n_blocks, float resolution, float offset, float * raise);

}  // namespace edgekv
