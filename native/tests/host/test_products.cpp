// Checks products of weights against their specification in double.
//   test_products
//
// Tolerance. Each block's sum of integers is exact. A block adds two terms to sums in single precision, which round at most once for each
// block, and the eight lanes are added at the end: (2 n_blocks + 4) * 2^-24 of the sum of what is added, without signs.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "checks.h"
#include "host_memory.h"
#include "kernels/half.h"
#include "kernels/products/products.h"

using namespace edgekv;
using namespace test;

namespace {

struct Case {
    WeightType type;
    int n_blocks, n_rows, n_tokens;
};

struct Instance {
    explicit Instance(const Case & c, unsigned seed) : c(c) {
        std::mt19937 random(seed);
        const int n_groups = (c.n_tokens + kProductTokens - 1) / kProductTokens;
        tokens.resize(static_cast<size_t>(c.n_blocks) * static_cast<size_t>(n_groups));
        const auto code = [&] { return static_cast<int8_t>(static_cast<int>(random() % 255) - 127); };  // -128 is not among ggml's
        const size_t n_weights = static_cast<size_t>(c.n_blocks) * static_cast<size_t>(c.n_rows);
        if (c.type == WeightType::q4_1) {
            q4_1.resize(n_weights);
            for (auto & block : q4_1) {
                block.d = static_cast<uint16_t>(0x2000 + random() % 0x800);                                   // 0.0078 to 0.03
                block.m = static_cast<uint16_t>((random() % 2) << 15 | (0x2c00 + random() % 0x400));  // 0.06 to 0.12, either sign
                std::generate(std::begin(block.codes), std::end(block.codes), [&] { return static_cast<uint8_t>(random()); });
            }
        } else {
            q8_0.resize(n_weights);
            for (auto & block : q8_0) {
                block.d = static_cast<uint16_t>((random() % 2) << 15 | (0x2000 + random() % 0x800));
                std::generate(std::begin(block.codes), std::end(block.codes), code);
            }
        }
        for (auto & blocks : tokens) {
            for (int t = 0; t < kProductTokens; ++t) {
                blocks.d[t] = static_cast<float>(half_to_double(static_cast<uint16_t>(0x2000 + random() % 0x800)));
                blocks.s[t] = static_cast<float>(half_to_double(static_cast<uint16_t>((random() % 2) << 15 | (0x3c00 + random() % 0x400))));
                std::generate(std::begin(blocks.codes[t]), std::end(blocks.codes[t]), code);
            }
        }
    }

    // The sum of the absolute terms of a product.
    double size_of(int row, int token) const {
        double sum = 0.0;
        for (int b = 0; b < c.n_blocks; ++b) {
            const size_t at = static_cast<size_t>(row * c.n_blocks + b);
            const TokenBlocks & t = tokens[static_cast<size_t>(token / kProductTokens * c.n_blocks + b)];
            const int mine = token % kProductTokens;
            for (int i = 0; i < kProductBlock; ++i) {
                sum += std::fabs(scale_of(at) * static_cast<double>(t.d[mine]) * code_of(at, i) * t.codes[mine][i]);
            }
            if (c.type == WeightType::q4_1) {
                sum += std::fabs(half_to_double(q4_1[at].m) * static_cast<double>(t.s[mine]));
            }
        }
        return sum;
    }

    double scale_of(size_t block) const { return half_to_double(c.type == WeightType::q4_1 ? q4_1[block].d : q8_0[block].d); }
    int code_of(size_t block, int i) const {
        constexpr int half = kProductBlock / 2;
        if (c.type == WeightType::q8_0) {
            return q8_0[block].codes[i];
        }
        return i < half ? q4_1[block].codes[i] & 15 : q4_1[block].codes[i - half] >> 4;
    }

    Case c;
    AtEndVector<BlockQ4_1> q4_1;
    AtEndVector<BlockQ8_0> q8_0;
    AtEndVector<TokenBlocks> tokens;
};

std::vector<float> multiplied(const Instance & in, int first, int end, Isa isa, bool reference) {
    const size_t stride = static_cast<size_t>(in.c.n_rows) + 3;
    std::vector<float> out(stride * static_cast<size_t>(in.c.n_tokens), -7.0f);
    ProductProblem p = {};
    const bool q4_1 = in.c.type == WeightType::q4_1;
    p.type = in.c.type;
    p.weights = q4_1 ? reinterpret_cast<const char *>(in.q4_1.data()) : reinterpret_cast<const char *>(in.q8_0.data());
    p.weight_stride = (q4_1 ? sizeof(BlockQ4_1) : sizeof(BlockQ8_0)) * static_cast<size_t>(in.c.n_blocks);
    p.tokens = in.tokens.data();
    p.n_blocks = in.c.n_blocks;
    p.n_tokens = in.c.n_tokens;
    p.out = out.data();
    p.out_stride = stride;
    reference ? multiply_rows_reference(p, first, end) : multiply_rows(p, first, end, isa);
    return out;
}

void check(const Case & c, int first, int end, Isa isa) {
    const Instance in(c, static_cast<unsigned>(c.n_blocks * 1000 + c.n_rows * 10 + c.n_tokens));
    const std::vector<float> want = multiplied(in, first, end, isa, true), got = multiplied(in, first, end, isa, false);
    const size_t stride = static_cast<size_t>(c.n_rows) + 3;
    for (int t = 0; t < c.n_tokens; ++t) {
        for (int r = 0; r < static_cast<int>(stride); ++r) {
            const size_t at = static_cast<size_t>(t) * stride + static_cast<size_t>(r);
            const bool mine = r >= first && r < end;
            const double bound = mine ? (2.0 * c.n_blocks + 4.0) * std::ldexp(in.size_of(r, t), -24) : 0.0;
            CHECK(std::fabs(static_cast<double>(got[at]) - want[at]) <= bound, "%s, %s, %d blocks, %d rows, %d tokens: row %d, token %d: %.9g, not %.9g",
                  isa_name(isa), c.type == WeightType::q4_1 ? "Q4_1" : "Q8_0", c.n_blocks, c.n_rows, c.n_tokens, r, t,
                  static_cast<double>(got[at]), static_cast<double>(want[at]));
        }
    }
}

}  // namespace

int main() {
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
        if (!isa_supported(isa)) {
            continue;
        }
        std::printf("%s ", isa_name(isa));
        for (const WeightType type : {WeightType::q4_1, WeightType::q8_0}) {
            for (const int n_blocks : {1, 2, 3, 18, 48}) {
                for (int n_tokens = 1; n_tokens <= 9; ++n_tokens) {
                    check({type, n_blocks, 7, n_tokens}, 0, 7, isa);
                    check({type, n_blocks, 8, n_tokens}, 0, 8, isa);
                    check({type, n_blocks, 8, n_tokens}, 3, 6, isa);
                }
            }
            check({type, 18, 64, 130}, 0, 64, isa);
        }
    }
    std::printf("\n");
    return finish();
}
