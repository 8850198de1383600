// The specification of products.
#include "kernels/products/products_internal.h"

#include "kernels/half.h"

namespace edgekv {

void multiply_rows_reference(const ProductProblem & p, int first, int end) {
    constexpr int half = kProductBlock / 2;
    for (int t = 0; t < p.n_tokens; ++t) {
        const TokenBlocks * tokens = p.tokens + static_cast<size_t>(t / kProductTokens) * static_cast<size_t>(p.n_blocks);
        const int mine = t % kProductTokens;
        for (int r = first; r < end; ++r) {
            const auto * row = reinterpret_cast<const WeightBlock *>(p.weights + static_cast<size_t>(r) * p.weight_stride);
            double sum = 0.0;
            for (int b = 0; b < p.n_blocks; ++b) {
                int products = 0;
                for (int i = 0; i < half; ++i) {
                    products += (row[b].codes[i] & 15) * tokens[b].codes[mine][i] + (row[b].codes[i] >> 4) * tokens[b].codes[mine][half + i];
                }
                sum += half_to_double(row[b].d) * static_cast<double>(tokens[b].d[mine]) * products;
                sum += half_to_double(row[b].m) * static_cast<double>(tokens[b].s[mine]);
            }
            p.out[static_cast<size_t>(t) * p.out_stride + static_cast<size_t>(r)] = static_cast<float>(sum);
        }
    }
}

const MultiplyFn kMultiplyPortable = multiply_rows_reference;

}  // namespace edgekv
