// Which pages one query token attends in one KV head where there are no sketches: those with a certain cell, and the best of the others by
// the policy's score.
//
// Nothing here knows ggml, llama.cpp or Python.
#pragma once

#include "kernels/sketch/sketch.h"

#include <cstdint>
#include <vector>

namespace edgekv {

struct PageChoice {
    int n_cells;  // in view
    int page_tokens;
    const Sight * sight;      // by group of 64 cells
    const float * priority;   // by page
    int tokens;               // the budget, certain pages included: of so many tokens, ...
    float share;              // ... or where that is 0, this share of the visible pages
};

struct ChoiceResult {
    int n_rows, n_certain, n_visible;
};

// The cells of the chosen pages that the token sees, ascending. Where scores are equal, the newer page is chosen; what is no
// number is the lowest score. `candidates` is scratch.
ChoiceResult choose_pages(const PageChoice & choice, int32_t * rows, std::vector<int32_t> & candidates);

inline bool sees(const Sight * sight, int cell) { return sight[cell / kGroupCells].visible >> cell % kGroupCells & 1; }
inline bool is_certain(const Sight * sight, int cell) { return sight[cell / kGroupCells].certain >> cell % kGroupCells & 1; }

}  // namespace edgekv
