// Checks products of weights, and the quantising of tokens, against their specifications.
//   test_products
//
// Tolerance. A block's sum of integers is exact. It goes into sums in single precision by two terms, each rounded at most three times, and no
// term is larger than twice the block's largest weight times the token's values: (6 n_blocks + 8) * 2^-24 of the sum of these.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "checks.h"
#include "host_memory.h"
#include "weight_cases.h"
#include "kernels/half.h"
#include "kernels/matmul/products_internal.h"
#include "kernels/matmul/weight_blocks.h"
#include "kernels/simd/isa_dispatch.h"

using namespace edgekv;
using namespace test;

namespace edgekv {
extern const ProductKernels kProductsEmulated;  // tiles in plain C++
}

namespace {

struct Kernels {
    const char * name;
    const ProductKernels & of;
    bool tiles;  // multiplies sixteens
};

struct Case {
    const Type & type;
    WeightLayout layout;
    int n_values, n_rows, n_tokens;
};

struct Instance {
    explicit Instance(const Case & c, unsigned seed) : c(c) {
        std::mt19937 random(seed);
        const size_t n_blocks = static_cast<size_t>(c.n_values / weight_values(c.type.type));
        stride = n_blocks * c.type.bytes;
        std::vector<std::vector<char>> blocks(n_blocks * static_cast<size_t>(c.n_rows));
        plain_weights.reserve(stride * static_cast<size_t>(c.n_rows));
        weights.reserve((stride + (c.layout == WeightLayout::sixteens ? 4 * n_blocks : 0)) * static_cast<size_t>(c.n_rows));
        for (auto & block : blocks) {
            block = random_block(c.type, random);
            plain_weights.insert(plain_weights.end(), block.begin(), block.end());
        }
        const auto in_groups = [&](auto & rows, auto join) {
            for (size_t group = 0; group < static_cast<size_t>(c.n_rows); group += std::size(rows)) {
                for (size_t b = 0; b < n_blocks; ++b) {
                    for (size_t r = 0; r < std::size(rows); ++r) {
                        rows[r] = blocks[(group + r) * n_blocks + b];
                    }
                    const std::vector<char> joined = join(c.type.type, rows);
                    weights.insert(weights.end(), joined.begin(), joined.end());
                }
            }
        };
        std::vector<char> eight[8], sixteen[16];
        switch (c.layout) {
            case WeightLayout::rows: weights.assign(plain_weights.begin(), plain_weights.end()); break;
            case WeightLayout::eights: in_groups(eight, eight_of); break;
            case WeightLayout::sixteens: in_groups(sixteen, sixteen_of); break;
        }
        const size_t n_chunks = static_cast<size_t>((c.n_values + kProductChunk - 1) / kProductChunk), n_tokens = static_cast<size_t>(c.n_tokens);
        tokens.resize(n_chunks * n_tokens + kTokensBehind);
        std::normal_distribution<float> normal;
        std::vector<float> values(static_cast<size_t>(c.n_values));
        for (size_t t = 0; t < n_tokens; ++t) {
            std::generate(values.begin(), values.end(), [&] { return normal(random); });
            quantise_token_reference(values.data(), c.n_values, token_form(c.type.type), &tokens[t], n_tokens);
        }
    }

    ProductProblem problem(bool plain, float * out) const {
        ProductProblem p = {};
        p.type          = c.type.type;
        p.layout        = plain ? WeightLayout::rows : c.layout;
        p.weights       = plain ? plain_weights.data() : weights.data();
        p.weight_stride = stride;
        p.tokens        = tokens.data();
        p.token_stride  = static_cast<size_t>(c.n_tokens);
        p.n_values      = c.n_values;
        p.n_tokens      = c.n_tokens;
        p.out           = out;
        p.out_stride    = out_stride();
        p.fetch         = kDefaultFetch;
        return p;
    }
    size_t out_stride() const { return static_cast<size_t>(c.n_rows) + 3; }

    // The sum that the tolerance is of.
    double size_of(int row, int token) const {
        const ProductProblem p = problem(true, nullptr);
        double sum = 0.0;
        for (int b = 0; b < c.n_values; b += kProductBlock) {
            const TokenChunk & x = tokens[static_cast<size_t>(b / kProductChunk * c.n_tokens + token)];
            double largest = 0.0, size = 0.0;
            for (int i = 0; i < kProductBlock; ++i) {
                largest = std::max(largest, std::fabs(weight_value(p, row, b + i)));
                size += std::abs(x.codes[(b + i) % kProductChunk]);
            }
            sum += 2 * largest * size * static_cast<double>(x.d[b % kProductChunk / kProductBlock]);
        }
        return sum;
    }

    Case c;
    size_t stride;
    AtEndVector<char> plain_weights, weights;
    AtEndVector<TokenChunk> tokens;
};

const char * const kLayoutNames[] = {"", " of eight", " of sixteen"};

void check_near(const Instance & in, const std::vector<float> & want, const std::vector<float> & got, int first, int end, const Kernels & with, const char * how) {
    const Case & c = in.c;
    for (int t = 0; t < c.n_tokens; ++t) {
        for (int r = 0; r < static_cast<int>(in.out_stride()); ++r) {
            const size_t at = static_cast<size_t>(t) * in.out_stride() + static_cast<size_t>(r);
            const bool mine = r >= first && r < end;
            const double bound = mine ? (6.0 * c.n_values / kProductBlock + 8.0) * std::ldexp(in.size_of(r, t), -24) : 0.0;
            CHECK(std::fabs(static_cast<double>(got[at]) - want[at]) <= bound, "%s, %s%s, %d values, %d rows, %d tokens%s: row %d, token %d: %.9g, not %.9g",
                  with.name, c.type.name, kLayoutNames[static_cast<int>(c.layout)], c.n_values, c.n_rows, c.n_tokens, how, r, t,
                  static_cast<double>(got[at]), static_cast<double>(want[at]));
        }
    }
}

void check(const Case & c, int first, int end, const Kernels & with) {
    const Instance in(c, static_cast<unsigned>(c.n_values * 1000 + c.n_rows * 10 + c.n_tokens));
    std::vector<float> want(in.out_stride() * static_cast<size_t>(c.n_tokens), -7.0f), got(want);
    multiply_rows_reference(in.problem(true, want.data()), first, end);
    with.of.multiply(in.problem(false, got.data()), first, end);
    check_near(in, want, got, first, end, with, "");
    if (c.n_tokens <= kFewTokens) {
        std::fill(got.begin(), got.end(), -7.0f);
        with.of.multiply_few(in.problem(false, got.data()), first, end);
        check_near(in, want, got, first, end, with, ", the kernel for a few");
    }
}

void check_products(const Kernels & with, const Type & type, WeightLayout layout) {
    const bool rows = layout == WeightLayout::rows, sixteens = layout == WeightLayout::sixteens;
    const int n_rows = sixteens ? 32 : 24;
    const auto sizes = weight_values(type.type) == kProductChunk ? std::vector<int>{256, 768} : std::vector<int>{32, 64, 256, 288, 576};
    for (const int n_values : sizes) {
        for (const int n_tokens : {1, 2, 3, 4, 5, 7, 9, 15, 16, 33, 50}) {
            check({type, layout, n_values, n_rows, n_tokens}, 0, n_rows, with);
            check({type, layout, n_values, sixteens ? 48 : 40, n_tokens}, 16, 32, with);
            if (rows) {
                check({type, layout, n_values, 19, n_tokens}, 16, 19, with);
            }
        }
    }
    check({type, layout, 256, 16, 515}, 0, 16, with);  // more tokens than a pass
}

// How weights are fetched changes no bit, with one token, several and many.
void check_fetches(const Kernels & with, const Type & type, WeightLayout layout) {
    for (const int n_tokens : {1, 3, 9}) {
        const Instance in({type, layout, 768, 32, n_tokens}, 7);
        const auto multiply = n_tokens > kFewTokens ? with.of.multiply : with.of.multiply_few;
        std::vector<float> want(in.out_stride() * static_cast<size_t>(n_tokens)), got(want);
        multiply(in.problem(false, want.data()), 0, 32);
        for (const WeightFetch fetch : {WeightFetch{0, false}, WeightFetch{0, true}, WeightFetch{5, false}}) {
            ProductProblem p = in.problem(false, got.data());
            p.fetch = fetch;
            multiply(p, 0, 32);
            CHECK(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0, "%s, %s%s, %d tokens: fetching %d chunks ahead%s changes a product",
                  with.name, type.name, kLayoutNames[static_cast<int>(layout)], n_tokens, fetch.near, fetch.stream ? " and streaming" : "");
        }
    }
}

// The same token has the same product, whatever is beside it.
void check_company(const Kernels & with, const Type & type, WeightLayout layout, decltype(ProductKernels::multiply) multiply, int n_tokens) {
    const Instance in({type, layout, 768, 32, n_tokens}, 5);
    const auto n = static_cast<size_t>(n_tokens);
    std::vector<float> together(in.out_stride() * n), alone(in.out_stride());
    multiply(in.problem(false, together.data()), 0, 32);
    for (size_t t = 0; t < n; ++t) {
        AtEndVector<TokenChunk> chunks;
        chunks.reserve(3 + kTokensBehind);
        for (size_t chunk = 0; chunk < 3; ++chunk) {
            chunks.insert(chunks.end(), &in.tokens[chunk * n + t], &in.tokens[chunk * n + t] + 1);
        }
        chunks.resize(3 + kTokensBehind);
        ProductProblem p = in.problem(false, alone.data());
        p.tokens       = chunks.data();
        p.token_stride = 1;
        p.n_tokens     = 1;
        multiply(p, 0, 32);
        CHECK(std::memcmp(alone.data(), &together[t * in.out_stride()], 32 * sizeof(float)) == 0, "%s, %s: token %zu", with.name, type.name, t);
    }
}

// ... and among many tokens, where tiles may be worth it.
void check_fewer(const Kernels & with, const Type & type) {
    const Instance in({type, WeightLayout::rows, 768, 32, 70}, 7);
    std::vector<float> all(in.out_stride() * 70), some(in.out_stride() * 70);
    with.of.multiply(in.problem(false, all.data()), 0, 32);
    ProductProblem p = in.problem(false, some.data());
    p.n_tokens = 45;
    with.of.multiply(p, 0, 32);
    for (size_t t = 0; t < 45; ++t) {
        CHECK(std::memcmp(&some[t * in.out_stride()], &all[t * in.out_stride()], 32 * sizeof(float)) == 0, "%s, %s: token %zu", with.name, type.name, t);
    }
}

// Some of the tokens, as those of one expert: each goes to its place.
void check_places(const Kernels & with, const Type & type) {
    const Instance in({type, WeightLayout::rows, 512, 24, 11}, 6);
    std::vector<float> all(in.out_stride() * 11, -7.0f), got(all), want(all);
    with.of.multiply(in.problem(false, all.data()), 0, 24);
    const int32_t places[] = {9, 0, 4, 10, 3};
    ProductProblem p = in.problem(false, got.data());
    p.tokens += 2;
    p.n_tokens = 5;
    p.places   = places;
    with.of.multiply(p, 0, 24);
    for (size_t t = 0; t < 5; ++t) {
        std::copy_n(&all[(t + 2) * in.out_stride()], 24, &want[static_cast<size_t>(places[t]) * in.out_stride()]);
    }
    CHECK(got == want, "%s, %s", with.name, type.name);
}

void check_quantising(const Kernels & with, TokenForm form) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (const float by : {1.0f, 1e-6f, 3e4f, 0.0f, 1e-30f}) {
        AtEndVector<float> values(768);
        std::generate(values.begin(), values.end(), [&] { return by * normal(random); });
        values[300] = values[301] = -values[302];  // the largest is there twice
        TokenChunk got[3] = {}, want[3] = {};
        with.of.quantise(values.data(), 768, form, got, 1);
        quantise_token_reference(values.data(), 768, form, want, 1);
        for (int i = 0; i < 3; ++i) {
            CHECK(std::memcmp(&got[i], &want[i], sizeof want[i]) == 0, "%s, factor of %d, times %g: chunk %d", with.name,
                  form == TokenForm::of_32 ? 32 : 256, static_cast<double>(by), i);
        }
    }
}

// Against the specifications, which compute in double: sums of squares in parts, a few roundings, and an exponential, whose error grows with what
// it is of (simd_exp.h) and which is 0 below exp(-87). What GEGLU's is of has three roundings of its own.
void check_values(const Kernels & with) {
    std::mt19937 random(4);
    std::normal_distribution<float> normal;
    for (const int n : {32, 256, 576, 640, 3072}) {
        for (const float by : {1.0f, 1e-4f, 40.0f, 3e3f, 0.0f}) {
            AtEndVector<float> values(static_cast<size_t>(n)), weights(static_cast<size_t>(n)), got(static_cast<size_t>(n)), want(static_cast<size_t>(n));
            std::generate(values.begin(), values.end(), [&] { return by * normal(random); });
            std::generate(weights.begin(), weights.end(), [&] { return normal(random); });
            const auto near = [](float one, float other, float of = 0.0f) {
                return std::fabs(one - other) <= (1e-6f + std::fabs(of) * 0x1p-24f) * std::fabs(other) + 1e-33f;
            };
            const auto check = [&](const char * what, float (*of_exponent)(float)) {
                for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
                    CHECK(near(got[i], want[i], of_exponent(values[i])), "%s, %s of %d, times %g: value %zu is %.9g, not %.9g", with.name, what, n,
                          static_cast<double>(by), i, static_cast<double>(got[i]), static_cast<double>(want[i]));
                }
            };

            const float factor = with.of.rms_factor(values.data(), n, 1e-5f), right = rms_factor_reference(values.data(), n, 1e-5f);
            CHECK(near(factor, right), "%s, %d values times %g: %.9g, not %.9g", with.name, n, static_cast<double>(by),
                  static_cast<double>(factor), static_cast<double>(right));
            with.of.weigh_values(values.data(), right, weights.data(), n, got.data());
            weigh_values_reference(values.data(), right, weights.data(), n, want.data());
            check("a norm", [](float) { return 0.0f; });
            with.of.gate_values(GateForm::silu, values.data(), weights.data(), n, got.data());
            gate_values_reference(GateForm::silu, values.data(), weights.data(), n, want.data());
            check("SwiGLU", [](float x) { return x; });
            with.of.gate_values(GateForm::gelu, values.data(), weights.data(), n, got.data());
            gate_values_reference(GateForm::gelu, values.data(), weights.data(), n, want.data());
            check("GEGLU", [](float x) { return 4.0f * kGeluLinear * x * (1.0f + kGeluCubic * x * x); });
        }
    }
}

std::vector<Kernels> all_kernels() {
    std::vector<Kernels> found;
    for (const char * name : {"avx2", "avxvnni", "avx512vnni", "amx"}) {
        if (product_kernels(name)) {
            found.push_back({name, *product_kernels(name), std::strcmp(name, "amx") == 0});
        }
    }
#if EDGEKV_X86
    if (product_kernels("avx512vnni")) {
        found.push_back({"emulated", kProductsEmulated, true});
    }
#endif
    return found;
}

}  // namespace

int main() {
    for (const Kernels & with : all_kernels()) {
        std::printf("%s ", with.name);
        for (const Type & type : kTypes) {
            check_products(with, type, WeightLayout::rows);
            check_fetches(with, type, WeightLayout::rows);
            if (type.repacked) {
                check_products(with, type, WeightLayout::eights);
                check_fetches(with, type, WeightLayout::eights);
            }
            const bool sixteens = with.tiles && type.tiled;
            if (sixteens) {
                check_products(with, type, WeightLayout::sixteens);
            }
            for (const WeightLayout layout : {WeightLayout::rows, WeightLayout::sixteens}) {
                if (layout == WeightLayout::rows || sixteens) {
                    check_company(with, type, layout, with.of.multiply, 19);
                    for (const int n_tokens : {2, 3, kFewTokens}) {
                        check_company(with, type, layout, with.of.multiply_few, n_tokens);
                    }
                }
            }
            check_fewer(with, type);
            check_places(with, type);
        }
        check_quantising(with, TokenForm::of_32);
        check_quantising(with, TokenForm::of_256);
        check_values(with);
    }
    std::printf("\n");
    return finish();
}
