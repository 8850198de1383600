// Mode evict: the cells of a cache that has K and V of so many tokens.
#pragma once

#include <algorithm>

namespace edgekv {

constexpr int kKeptStep = 256;  // llama.cpp pads caches to so many cells

inline int kept_tokens(int keep_tokens) { return (keep_tokens + kKeptStep - 1) / kKeptStep * kKeptStep; }

// n_cells, a multiple of 256, if so many tokens are kept whole; otherwise fewer, which is how a bounded cache is known. Where each layer gives back
// what it drops (by_layer), layers keep different tokens: together about twice as many as one of them (measured: 1.75 to 2 times). No more than
// the model was trained for, because tokens are rotated by their number among the cells.
inline int kept_cells(int n_cells, int keep_tokens, bool by_layer, int n_trained) {
    const int kept = kept_tokens(keep_tokens);
    if (kept >= n_cells) {
        return n_cells;
    }
    return std::min(n_cells - kKeptStep, by_layer ? std::max(kept, std::min(2 * kept, n_trained / kKeptStep * kKeptStep)) : kept);
}

}  // namespace edgekv
