// Attention mass of the last block of tokens, by page. Weights wait by strip of 16 cells until the running maxima are final.
#pragma once

#include <string.h>

#include "kernels/prefill/prompt_scope.h"
#include "kernels/prefill/prompt_softmax.h"

namespace edgekv {
namespace {

constexpr int kStrips = kPromptCells / kStripCells;

inline float * strip_sums(const ItemScope & s, int strip) {
    return s.floats(s.at.strip_sums) + static_cast<size_t>(strip) * static_cast<size_t>(s.at.block_queries);
}
inline float * block_max(const ItemScope & s, int block) {
    return s.floats(s.at.block_max) + static_cast<size_t>(block) * static_cast<size_t>(s.at.block_queries);
}

inline void see_nothing(const ItemScope & s, int block) {
    memset(strip_sums(s, block * kStrips), 0, sizeof(float) * static_cast<size_t>(kStrips * s.at.block_queries));
    for (int r = 0; r < s.at.block_queries; ++r) {
        block_max(s, block)[r] = kNothing;
    }
}

// Adds maximum and sum over a token's heads of the last block's weights, by page.
inline void add_mass(const ItemScope & s) {
    const int first = (s.n_panels - s.block_panels) * kLanes, n_tokens = s.tokens_of(s.item.end_block - s.item.first_block - 1);
    const int per_page = s.p.page_tokens / kStripCells, n_strips = (s.p.n_cells + kStripCells - 1) / kStripCells;
    const int n_pages = (s.p.n_cells + s.p.page_tokens - 1) / s.p.page_tokens;
    float * const mass = s.floats(s.at.q);  // no longer needed: [block_queries]
    for (int page = 0; page < n_pages; ++page) {
        memset(mass, 0, sizeof(float) * static_cast<size_t>(s.at.block_queries));
        for (int strip = page * per_page; strip < (page + 1) * per_page && strip < n_strips; ++strip) {
            const float * tops = block_max(s, strip / kStrips);
            for (int r = 0; r < s.at.block_queries; r += kLanes) {
                const F apart = Simd::sub(Simd::load(tops + r), Simd::load(s.floats(s.at.max) + first + r));
                const F weight = Simd::mul(exp2_of<5>(apart), Simd::load(s.floats(s.at.sum) + first + r));
                Simd::store(mass + r, Simd::fma(Simd::load(strip_sums(s, strip) + r), weight, Simd::load(mass + r)));
            }
        }
        float top_sum = 0.0f, sum = 0.0f;
        for (int t = 0; t < n_tokens; ++t) {
            float top = 0.0f;
            for (int g = 0; g < s.plan.group; ++g) {
                const float x = mass[t * s.plan.group + g];
                top = x > top ? x : top;
                sum += x;
            }
            top_sum += top;
        }
        const size_t to = static_cast<size_t>(s.item.head) * s.p.mass_stride + static_cast<size_t>(page);
        if (s.p.mass_max != nullptr) {
            s.p.mass_max[to] += top_sum;
        }
        if (s.p.mass_sum != nullptr) {
            s.p.mass_sum[to] += sum;
        }
    }
}

}  // namespace
}  // namespace edgekv
