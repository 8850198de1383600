// Prompt attention: many query tokens over the cells that they see. The kernel's contract.
//
// A work item is a KV head and a block of query tokens of its whole group. A free thread claims the next item. Items share nothing, so there
// is no barrier, and the result does not depend on the number of threads. An item packs the keys and values of 64 cells once, for all its
// queries.
#pragma once

#include "kernels/decode/attend.h"

namespace edgekv {

// Cells and query tokens are classified in blocks. Blocks of tokens end with the last token, so that only the first may have fewer.
constexpr int kPromptCells = 64;
constexpr int kPromptTokens = 16;

enum class Seen : uint8_t { nothing = 0, some = 1, all = 2 };  // all: visible and nothing to add

// The sight of blocks of tokens on blocks of cells, found once for all layers and heads that share a mask.
inline int prompt_token_blocks(int n_tokens) { return (n_tokens + kPromptTokens - 1) / kPromptTokens; }
inline int prompt_cell_blocks(int n_cells) { return (n_cells + kPromptCells - 1) / kPromptCells; }
// The first token of a block. For the block after the last it is n_tokens.
inline int prompt_first_token(int n_tokens, int block) {
    const int first = n_tokens - (prompt_token_blocks(n_tokens) - block) * kPromptTokens;
    return first > 0 ? first : 0;
}

// Classifies one block of tokens: seen[prompt_cell_blocks(n_cells)]. A mask of type none lets every token see every cell.
void prompt_classify(MaskType type, const char * mask, size_t stride_token, int n_tokens, int n_cells, int block, Seen * seen);

struct PromptProblem {
    // n_tokens may be any number; its lists of rows, arena, hits and errors are not used. Mass is observed of the last block of tokens only.
    AttendProblem attend;
    const Seen * seen;  // [token blocks][seen_stride]
    size_t seen_stride;
    // Pages that a KV head does not attend, non-zero: [n_head_kv][dropped_stride]; null: none
    const uint8_t * dropped;
    size_t dropped_stride;
    // [cell blocks] Raises a block's logits in this item by so many powers of two, 0 or more. Negative: the block is not attended. Null: all
    // blocks are attended with their own logits.
    const float * raise;
};

// The cut of a problem into items, the same for all of its threads.
struct PromptPlan {
    int group;
    int n_token_blocks, n_cell_blocks;
    int item_blocks;  // blocks of tokens of an item
    int n_token_items;  // items along the tokens
    int n_items;
    size_t scratch_bytes;  // of one thread, 64-byte aligned; need not be cleared
};

PromptPlan prompt_plan(const AttendProblem & problem, int n_threads);
// Item 0 is the longest, with the last tokens, where the mask is causal.
struct PromptItem {
    int head;                     // KV head
    int first_block, end_block;   // blocks of tokens
};
PromptItem prompt_item(const PromptPlan & plan, int n_head_kv, int item);

// Attends one item. The items with the last block of tokens, one for each KV head, add its mass.
void prompt_attend(const PromptProblem & problem, const PromptPlan & plan, int item, char * scratch, Isa isa);

bool prompt_supports(int head_dim, CellType k_type, CellType v_type);

// The specification: double precision over the stored values, plain loops; all items at once, with `raise` null.
void prompt_reference(const PromptProblem & problem);

}  // namespace edgekv
