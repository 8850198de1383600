// Sampling: from the estimated shares of a scan, lists the rows of K and V that one query token reads in one KV head, with their weights.
//
//   p(cell) = min(1, resolution * mean over the query heads of the cell's share), in steps of 2^-20, but at least resolution / 128
//             spread evenly over the visible cells; 1 if the cell is certain, or if the token sees few cells; 0 if it cannot see it
//
// In each page of 16 cells a walk sums p over the cells in order, from an offset on, and reads a cell if the sum passes a whole number there
// (systematic sampling): with probability p over all offsets, and always if p is 1. The cell's weight is 1 / p. So the mean over all offsets of a
// sum over the read rows (numerator or denominator of the softmax) is the sum over all cells (Horvitz and Thompson, 1952), and the
// output, a ratio of two such sums, is a consistent estimate. A page has an offset of its own that turns slowly from token to token (draw.h), so
// most of what a token reads was read shortly before. It needs no state and no random numbers: the same shares give the same rows at the same
// place of a conversation. The floor lets a cell be read even if its sketch underestimates it, and bounds the weights.
//
// The shares of the unread cells add up to the estimated share of the attention on unread tokens.
#pragma once

#include "kernels/select/draw.h"
#include "kernels/sketch/sketch.h"

namespace edgekv {

struct SampleProblem {
    int n_groups;
    int group;  // query heads
    const uint16_t * shares;  // [group][cell_stride], as in Shares
    const float * tops;       // [group][group_stride]
    const float * sums;
    size_t cell_stride, group_stride;
    const float * sinks;    // [group] attention-sink logits, or null
    const Sight * sight;    // [n_groups]
    float resolution;
    int exact_tokens;  // a token that sees at most so many cells reads them all
    const int32_t * positions;  // of cells, read where a page begins in which the token sees a cell
    uint32_t turn;          // page_turn()

    int32_t * rows;   // out [kGroupCells * n_groups], ascending; places past the last row are overwritten too
    float * weights;  // out, one for each row
    char * scratch;   // sample_scratch_bytes(), 64-byte aligned
};

struct SampleResult {
    int n_rows;
    int n_certain;  // of these, with p = 1
    int n_visible;
    double missed;  // resolution times the estimated share of attention on unread cells
};

size_t sample_scratch_bytes(int n_groups, int group);
SampleResult sample_rows(const SampleProblem & problem, Isa isa);

// The specification: double precision, plain loops. chances: [kGroupCells * n_groups] each cell's p in steps of 2^-20; by_share: the same
// without the floor; null: not wanted.
SampleResult sample_reference(const SampleProblem & problem, int32_t * chances, int32_t * by_share);

}  // namespace edgekv
