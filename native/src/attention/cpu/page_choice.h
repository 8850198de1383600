// Without sketches, chooses the pages that one query token attends in one KV head: pages with a certain cell, and the best other pages by
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
    int tokens;               // the budget in tokens, including certain pages; 0: `share` is the budget
    float share;              // of the visible pages
    int exact_tokens;          // a token that sees at most so many cells reads them all
};

struct ChoiceResult {
    int n_rows, n_certain, n_visible;
};

// Lists the visible cells of the chosen pages, ascending. Of equal scores the later page wins; NaN is the lowest score.
// `candidates` is scratch.
ChoiceResult choose_pages(const PageChoice & choice, int32_t * rows, std::vector<int32_t> & candidates);

inline int n_visible(const Sight * sight, int n_groups) {
    int n = 0;
    for (int group = 0; group < n_groups; ++group) {
        n += __builtin_popcountll(sight[group].visible);
    }
    return n;
}
inline bool sees(const Sight * sight, int cell) { return sight[cell / kGroupCells].visible >> cell % kGroupCells & 1; }
inline bool is_certain(const Sight * sight, int cell) { return sight[cell / kGroupCells].certain >> cell % kGroupCells & 1; }

}  // namespace edgekv
