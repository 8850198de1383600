#include "kernels/prefill/prompt_choice.h"

#include <algorithm>
#include <cmath>

namespace edgekv {

void add_square_shares(const float * tops, const float * sums, int n_blocks, float * squares) {
    const float top = *std::max_element(tops, tops + n_blocks);
    if (top == -INFINITY) {
        return;  // the query sees nothing
    }
    double total = 0.0;
    for (int b = 0; b < n_blocks; ++b) {
        total += static_cast<double>(sums[b] * std::exp(tops[b] - top));
    }
    for (int b = 0; b < n_blocks; ++b) {
        const float share = sums[b] * std::exp(tops[b] - top) / static_cast<float>(total);
        squares[b] += share * share;
    }
}

int draw_blocks(const float * squares, int n_queries, const uint8_t * certain, int n_blocks, float resolution, float offset, float * raise) {
    int n_drawn = 0;
    float sum = offset;
    for (int b = 0; b < n_blocks; ++b) {
        const float wanted = resolution * std::sqrt(squares[b] / static_cast<float>(n_queries));
        const float chance = certain[b] || wanted >= 1.0f ? 1.0f : squares[b] > 0.0f ? std::max(wanted, kLeastChance) : 0.0f;
        bool drawn = chance == 1.0f;
        if (!drawn) {
            sum += chance;
            drawn = sum >= 1.0f;
            sum -= drawn ? 1.0f : 0.0f;
        }
        raise[b] = drawn ? -std::log2(chance) : -1.0f;
        n_drawn += drawn;
    }
    return n_drawn;
}

}  // namespace edgekv
