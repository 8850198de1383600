#include "kernels/prompt/prompt_choice.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

void add_block_shares(const float * tops, const float * sums, int n_blocks, float * shares) {
    const float top = *std::max_element(tops, tops + n_blocks);
    if (top == -INFINITY) {
        return;  // the row sees nothing
    }
    double total = 0.0;
    for (int b = 0; b < n_blocks; ++b) {
        total += static_cast<double>(sums[b] * std::exp(tops[b] - top));
    }
    for (int b = 0; b < n_blocks; ++b) {
        shares[b] += sums[b] * std::exp(tops[b] - top) / static_cast<float>(total);
    }
}

int choose_blocks(const float * shares, const uint8_t * certain, int n_blocks, float coverage, int32_t * order, uint8_t * chosen) {
    double all = 0.0, covered = 0.0;
    int n_chosen = 0, n = 0;
    for (int b = 0; b < n_blocks; ++b) {
        all += static_cast<double>(shares[b]);
        chosen[b] = certain[b] != 0;
        if (chosen[b]) {
            covered += static_cast<double>(shares[b]);
            n_chosen += 1;
        } else if (shares[b] > 0.0f) {
            order[n++] = b;
        }
    }
    std::sort(order, order + n, [&](int a, int b) { return shares[a] != shares[b] ? shares[a] > shares[b] : a < b; });
    for (int i = 0; i < n && covered < static_cast<double>(coverage) * all; ++i) {
        chosen[order[i]] = 1;
        covered += static_cast<double>(shares[order[i]]);
        n_chosen += 1;
    }
    return n_chosen;
}

}  // namespace edgekv
