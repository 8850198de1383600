// Masks of attention: who sees what, and what is added to it.
#pragma once

#include "cell_rows.h"

namespace test {

using edgekv::MaskType;

enum class Mask { none, causal, window, interleaved, biased, first_hidden, all_hidden, huge_bias, sparse, distance, count };

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

    const int n_tokens, n_cells;

private:
    float value(Mask mask, int t, int i, Random & rng) const {
        const int position = std::max(n_cells * 3 / 4 - n_tokens + t, 0);  // the last quarter is padding
        const bool causal = i <= position;
        switch (mask) {
            case Mask::none: return 0.0f;
            case Mask::causal: return causal ? 0.0f : -kInf;
            case Mask::window: return causal && i > position - 100 ? 0.0f : -kInf;
            case Mask::interleaved: return causal && i * 7 / 3 % 2 == t % 2 ? 0.0f : -kInf;
            case Mask::biased: return rng.uniform() < 0.1f ? -kInf : rng.uniform() * 10.0f - 8.0f;
            case Mask::first_hidden: return t <= n_tokens / 20 ? -kInf : 0.0f;
            case Mask::all_hidden: return -kInf;
            case Mask::huge_bias: return t == 0 || i % 5 == 0 ? -1e30f : i % 7 == 0 ? -3e38f : 0.0f;
            case Mask::sparse: return i / 16 % 9 == 4 && (i + t) % 3 != 0 ? 0.0f : -kInf;
            case Mask::distance: return causal ? static_cast<float>(i - position) : -kInf;
            case Mask::count: break;
        }
        return 0.0f;
    }

    std::vector<float> values;
};

// The mask in its type, with `gap` values behind each token's; sets the bytes from token to token. Nothing for a mask of type none. A half
// that would overflow is the least finite one.
inline Bytes stored_mask(const MaskValues & values, MaskType type, size_t gap, size_t & stride_token) {
    const size_t size = type == MaskType::f32 ? 4 : 2;
    stride_token = (static_cast<size_t>(values.n_cells) + gap) * size;
    Bytes out;
    if (type == MaskType::none) {
        return out;
    }
    out.resize(stride_token * static_cast<size_t>(values.n_tokens - 1) + static_cast<size_t>(values.n_cells) * size);
    for (int t = 0; t < values.n_tokens; ++t) {
        for (int i = 0; i < values.n_cells; ++i) {
            const float x = values.at(t, i);
            const uint16_t half = to_half(x == -kInf ? x : std::max(x, -65504.0f));
            std::memcpy(out.data() + static_cast<size_t>(t) * stride_token + static_cast<size_t>(i) * size,
                        size == 4 ? static_cast<const void *>(&x) : &half, size);
        }
    }
    return out;
}

}  // namespace test
