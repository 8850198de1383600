// Masks of decode attention: who sees what, and what is added to it.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "attend_cases.h"

namespace cases {

enum class Mask { none, causal_f16, causal_f32, interleaved, biased, first_row_hidden, all_hidden, huge_bias, sparse, count };

// The additive mask of n_tokens tokens over n_cells cells as float, before it is stored in its type.
class MaskValues {
public:
    MaskValues(Mask mask, int n_tokens, int n_cells, Random & rng) : n_tokens(n_tokens), n_cells(n_cells) {
        for (int t = 0; t < n_tokens; ++t) {
            for (int i = 0; i < n_cells; ++i) {
                values.push_back(value(mask, t, i, rng));
            }
        }
    }

    float at(int token, int cell) const { return values[static_cast<size_t>(token) * static_cast<size_t>(n_cells) + static_cast<size_t>(cell)]; }
    bool sees(int token, int cell) const { return at(token, cell) != -kInf; }
    bool hidden(int cell) const {  // from every token
        for (int t = 0; t < n_tokens; ++t) {
            if (sees(t, cell)) {
                return false;
            }
        }
        return true;
    }
    int seeing_tokens() const {
        int n = 0;
        for (int t = 0; t < n_tokens; ++t) {
            bool any = false;
            for (int i = 0; i < n_cells; ++i) {
                any = any || sees(t, i);
            }
            n += any ? 1 : 0;
        }
        return n;
    }

    const int n_tokens, n_cells;

private:
    static constexpr float kInf = std::numeric_limits<float>::infinity();

    float value(Mask mask, int t, int i, Random & rng) const {
        const bool causal = i <= std::max(n_cells * 3 / 4 - n_tokens + t, 0);  // the last quarter is padding
        switch (mask) {
            case Mask::none: return 0.0f;
            case Mask::causal_f16:
            case Mask::causal_f32: return causal ? 0.0f : -kInf;
            case Mask::interleaved: return causal && i * 7 / 3 % 2 == t % 2 ? 0.0f : -kInf;
            case Mask::biased: return rng.uniform() < 0.1f ? -kInf : rng.uniform() * 10.0f - 8.0f;
            case Mask::first_row_hidden: return t == 0 ? -kInf : 0.0f;
            case Mask::all_hidden: return -kInf;
            case Mask::huge_bias: return t == 0 || i % 5 == 0 ? -1e30f : i % 7 == 0 ? -3e38f : 0.0f;
            case Mask::sparse: return i / 16 % 9 == 4 && (i + t) % 3 != 0 ? 0.0f : -kInf;
            case Mask::count: break;
        }
        return 0.0f;
    }

    std::vector<float> values;
};

inline edgekv::MaskType mask_type(Mask mask) {
    const bool f32 = mask == Mask::causal_f32 || mask == Mask::first_row_hidden || mask == Mask::huge_bias;
    return mask == Mask::none ? edgekv::MaskType::none : f32 ? edgekv::MaskType::f32 : edgekv::MaskType::f16;
}

// The mask in its type, with `gap` values behind each token's; sets the bytes from token to token. Nothing for a mask of type none.
template <class Bytes>
Bytes stored_mask(const MaskValues & values, edgekv::MaskType type, size_t gap, size_t & stride_token) {
    const size_t size = type == edgekv::MaskType::f32 ? 4 : 2;
    stride_token = (static_cast<size_t>(values.n_cells) + gap) * size;
    Bytes out;
    if (type == edgekv::MaskType::none) {
        return out;
    }
    out.resize(stride_token * static_cast<size_t>(values.n_tokens - 1) + static_cast<size_t>(values.n_cells) * size);
    for (int t = 0; t < values.n_tokens; ++t) {
        for (int i = 0; i < values.n_cells; ++i) {
            const float x = values.at(t, i);
            const uint16_t half = size == 4 ? 0 : to_half(x);
            std::memcpy(out.data() + static_cast<size_t>(t) * stride_token + static_cast<size_t>(i) * size,
                        size == 4 ? static_cast<const void *>(&x) : &half, size);
        }
    }
    return out;
}

}  // namespace cases
