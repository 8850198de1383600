// Sampling: from the shares that a scan estimated, lists the rows of K and V that one query token reads in one KV head, and their weights.
//
//   p(cell) = min(1, resolution * mean over the query heads of the cell's share), in steps of 2^-20, but no less than the resolution / 128
//             spread evenly over what the token sees; 1 where the cell is certain, 0 where the token cannot see it
//
// Cells are walked in order over the running sum of p, from an offset on, and a cell is read where the sum passes a whole number (systematic
// sampling): with probability p over all offsets, and for certain where p is 1. Its weight is 1 / p, so that sums over the rows read,
// numerators and denominators of the softmax, have the sums over all as their means over all offsets (Horvitz and Thompson, 1952), and what
// is attended, the ratio of two such sums, is a consistent estimate. The offset follows from layer, head and position (draw.h): no state, no
// random numbers, the same shares give the same rows at the same place of a conversation. The floor lets a cell be read that its sketch
// underestimates, and bounds the weights.
//
// The shares of the unread cells add up to the estimated share of the attention on unread tokens.
//
// Nothing here knows ggml, llama.cpp or Python. NumPy's specification is edgekv/arrays/sample.py.
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
    int32_t offset;         // of the walk: walk_offset()

    int32_t * rows;   // out [kGroupCells * n_groups], ascending; the places behind the last row are overwritten too
    float * weights;  // out, as many
    char * scratch;   // sample_scratch_bytes(), 64-byte aligned
};

struct SampleResult {
    int n_rows;
    int n_certain;  // of these, with p = 1
    int n_visible;
    double missed;  // resolution times the estimated share of attention on the cells that were not read
};

size_t sample_scratch_bytes(int n_groups, int group);
SampleResult sample_rows(const SampleProblem & problem, Isa isa);

// The specification: double precision, plain loops. chances: [kGroupCells * n_groups] the p of each cell in steps of 2^-20, and by_share what
// it is without the floor; null: not wanted.
SampleResult sample_reference(const SampleProblem & problem, int32_t * chances, int32_t * by_share);

}  // namespace edgekv
