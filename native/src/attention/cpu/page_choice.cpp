// Chooses one token's pages: first certain ones, then the best by score until the budget is full. Lists their visible cells in ascending order.
// The thread that lists a head calls it (select_lists.cpp). It reads sights and the policy's scores, and writes the head's list and the thread's
// own `candidates`.
#include "attention/cpu/page_choice.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

ChoiceResult choose_pages(const PageChoice & choice, int32_t * rows, std::vector<int32_t> & candidates) {
    const int n_pages = (choice.n_cells + choice.page_tokens - 1) / choice.page_tokens;
    const auto end_of = [&](int page) { return std::min((page + 1) * choice.page_tokens, choice.n_cells); };

    // certain pages in front
    int n_certain = 0;
    candidates.clear();
    for (int page = 0; page < n_pages; ++page) {
        bool visible = false;
        bool certain = false;
        for (int c = page * choice.page_tokens; c < end_of(page); ++c) {
            visible = visible || sees(choice.sight, c);
            certain = certain || is_certain(choice.sight, c);
        }
        if (visible) {
            candidates.push_back(page);
        }
        if (visible && certain) {
            std::swap(candidates[n_certain++], candidates.back());
        }
    }

    ChoiceResult result = {};
    result.n_visible = n_visible(choice.sight, (choice.n_cells + kGroupCells - 1) / kGroupCells);

    const int n_seen = static_cast<int>(candidates.size());
    const int wanted    = result.n_visible <= choice.exact_tokens ? n_seen
                        : choice.tokens > 0                         ? (choice.tokens + choice.page_tokens - 1) / choice.page_tokens
                                                                    : static_cast<int>(std::lround(choice.share * n_seen));
    const int n_taken   = std::clamp(wanted, n_certain, n_seen);
    // nth_element() needs an order, and NaN has none
    const auto score = [&](int32_t page) { return std::isnan(choice.priority[page]) ? -INFINITY : choice.priority[page]; };
    std::nth_element(candidates.begin() + n_certain, candidates.begin() + n_taken, candidates.end(),
                     [&](int32_t a, int32_t b) { return score(a) != score(b) ? score(a) > score(b) : a > b; });

    const auto cells_of = [&](int page, int & n) {
        for (int c = page * choice.page_tokens; c < end_of(page); ++c) {
            n += sees(choice.sight, c);
        }
    };
    for (int i = 0; i < n_certain; ++i) {
        cells_of(candidates[i], result.n_certain);
    }
    std::sort(candidates.begin(), candidates.begin() + n_taken);
    for (int i = 0; i < n_taken; ++i) {
        for (int c = candidates[i] * choice.page_tokens; c < end_of(candidates[i]); ++c) {
            if (sees(choice.sight, c)) {
                rows[result.n_rows++] = c;
            }
        }
    }
    return result;
}

}  // namespace edgekv
