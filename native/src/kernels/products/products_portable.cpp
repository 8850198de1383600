// The specification of products.
#include "kernels/products/products_internal.h"

#include "kernels/half.h"

namespace edgekv {

namespace {

double product(const BlockQ4_1 & w, const TokenBlocks & tokens, int t) {
    constexpr int half = kProductBlock / 2;
    int products = 0;
    for (int i = 0; i < half; ++i) {
        products += (w.codes[i] & 15) * tokens.codes[t][i] + (w.codes[i] >> 4) * tokens.codes[t][half + i];
    }
    return half_to_double(w.d) * static_cast<double>(tokens.d[t]) * products + half_to_double(w.m) * static_cast<double>(tokens.s[t]);
}

double product(const BlockQ8_0 & w, const TokenBlocks & tokens, int t) {
    int products = 0;
    for (int i = 0; i < kProductBlock; ++i) {
        products += w.codes[i] * tokens.codes[t][i];
    }
    return half_to_double(w.d) * static_cast<double>(tokens.d[t]) * products;
}

template <class Block>
void multiply_type(const ProductProblem & p, int first, int end) {
    for (int t = 0; t < p.n_tokens; ++t) {
        const TokenBlocks * tokens = p.tokens + static_cast<size_t>(t / kProductTokens) * static_cast<size_t>(p.n_blocks);
        for (int r = first; r < end; ++r) {
            const auto * row = reinterpret_cast<const Block *>(p.weights + static_cast<size_t>(r) * p.weight_stride);
            double sum = 0.0;
            for (int b = 0; b < p.n_blocks; ++b) {
                sum += product(row[b], tokens[b], t % kProductTokens);
            }
            p.out[static_cast<size_t>(t) * p.out_stride + static_cast<size_t>(r)] = static_cast<float>(sum);
        }
    }
}

}  // namespace

void multiply_rows_reference(const ProductProblem & p, int first, int end) {
    p.type == WeightType::q4_1 ? multiply_type<BlockQ4_1>(p, first, end) : multiply_type<BlockQ8_0>(p, first, end);
}

const MultiplyFn kMultiplyPortable = multiply_rows_reference;

}  // namespace edgekv
