// The specifications of products, over rows as they lie in the file.
#include <algorithm>
#include <cmath>

#include "kernels/half.h"
#include "kernels/matmul/products.h"
#include "kernels/matmul/weight_blocks.h"

namespace edgekv {

namespace {

int nibble(uint8_t byte, bool high) { return high ? byte >> 4 : byte & 15; }

// The j-th of the eight scales or mins, of six bits.
int six_bits(const uint8_t * scales, int j, bool min) {
    const int from = j + (min ? 4 : 0);
    if (j < 4) {
        return scales[from] & 63;
    }
    return (min ? scales[j + 4] >> 4 : scales[j + 4] & 15) | (scales[from - 4] >> 6) << 4;
}

double of_k(uint16_t d, uint16_t dmin, int scale, int min, int code) {
    return half_to_double(d) * scale * code - half_to_double(dmin) * min;
}

// Value `at` of a block of one row.
double value(const BlockQ4_0 & b, int at) { return half_to_double(b.d) * (nibble(b.codes[at % 16], at >= 16) - 8); }
double value(const BlockQ4_1 & b, int at) { return half_to_double(b.d) * nibble(b.codes[at % 16], at >= 16) + half_to_double(b.m); }
int with_high(const uint8_t * codes, const uint8_t * high, int at) {
    return nibble(codes[at % 16], at >= 16) | (high[at / 8] >> at % 8 & 1) << 4;
}
double value(const BlockQ5_0 & b, int at) { return half_to_double(b.d) * (with_high(b.codes, b.high, at) - 16); }
double value(const BlockQ5_1 & b, int at) { return half_to_double(b.d) * with_high(b.codes, b.high, at) + half_to_double(b.m); }
double value(const BlockQ8_0 & b, int at) { return half_to_double(b.d) * b.codes[at]; }
double value(const BlockQ4_K & b, int at) {
    const int j = at / 32;
    return of_k(b.d, b.dmin, six_bits(b.scales, j, false), six_bits(b.scales, j, true), nibble(b.codes[j / 2 * 32 + at % 32], j % 2));
}
double value(const BlockQ5_K & b, int at) {
    const int j = at / 32, code = nibble(b.codes[j / 2 * 32 + at % 32], j % 2) | (b.high[at % 32] >> j & 1) << 4;
    return of_k(b.d, b.dmin, six_bits(b.scales, j, false), six_bits(b.scales, j, true), code);
}
double value(const BlockQ6_K & b, int at) {
    const int half = at / 128, quarter = at % 128 / 32, i = at % 32;
    const int code = nibble(b.low[64 * half + 32 * (quarter % 2) + i], quarter >= 2) | (b.high[32 * half + i] >> 2 * quarter & 3) << 4;
    return half_to_double(b.d) * b.scales[at / 16] * (code - 32);
}
double value(const BlockIQ4_NL & b, int at) { return half_to_double(b.d) * kIq4Values[nibble(b.codes[at % 16], at >= 16)]; }
double value(const BlockIQ4_XS & b, int at) {
    const int j = at / 32, scale = nibble(b.low[j / 2], j % 2) | (b.high >> 2 * j & 3) << 4;
    return half_to_double(b.d) * (scale - 32) * kIq4Values[nibble(b.codes[16 * j + at % 16], at % 32 >= 16)];
}
double value(const BlockMXFP4 & b, int at) { return std::ldexp(kMxfp4Values[nibble(b.codes[at % 16], at >= 16)], b.exponent - 128); }

template <class Block>
double plain(const ProductProblem & p, int row, int at) {
    const int n = weight_values(p.type);
    const auto * blocks = reinterpret_cast<const Block *>(p.weights + static_cast<size_t>(row) * p.weight_stride);
    return value(blocks[at / n], at % n);
}

}  // namespace

double weight_value(const ProductProblem & p, int row, int at) {
    switch (p.type) {
        case WeightType::q4_0: return plain<BlockQ4_0>(p, row, at);
        case WeightType::q4_1: return plain<BlockQ4_1>(p, row, at);
        case WeightType::q5_0: return plain<BlockQ5_0>(p, row, at);
        case WeightType::q5_1: return plain<BlockQ5_1>(p, row, at);
        case WeightType::q8_0: return plain<BlockQ8_0>(p, row, at);
        case WeightType::q4_k: return plain<BlockQ4_K>(p, row, at);
        case WeightType::q5_k: return plain<BlockQ5_K>(p, row, at);
        case WeightType::q6_k: return plain<BlockQ6_K>(p, row, at);
        case WeightType::iq4_nl: return plain<BlockIQ4_NL>(p, row, at);
        case WeightType::iq4_xs: return plain<BlockIQ4_XS>(p, row, at);
        case WeightType::mxfp4: return plain<BlockMXFP4>(p, row, at);
    }
    return 0;
}

void multiply_rows_reference(const ProductProblem & p, int first, int end) {
    for (int t = 0; t < p.n_tokens; ++t) {
        for (int r = first; r < end; ++r) {
            double sum = 0.0;
            for (int i = 0; i < p.n_values; ++i) {
                const TokenChunk & token = p.tokens[static_cast<size_t>(i / kProductChunk) * p.token_stride + static_cast<size_t>(t)];
                const int at = i % kProductChunk;
                sum += weight_value(p, r, i) * static_cast<double>(token.d[at / kProductBlock]) * token.codes[at];
            }
            p.out_row(t)[r] = static_cast<float>(sum);
        }
    }
}

void quantise_token_reference(const float * values, int n, TokenForm form, TokenChunk * out, size_t stride) {
    const int width = form == TokenForm::of_32 ? kProductBlock : kProductChunk;
    for (int i = 0; i < n; i += width) {
        TokenChunk & to = out[static_cast<size_t>(i / kProductChunk) * stride];
        float largest = 0;
        for (int j = 0; j < width; ++j) {
            largest = std::max(largest, std::fabs(values[i + j]));
        }
        const float by = largest > 0 ? 127.0f / largest : 0;
        const float d = form == TokenForm::of_32 ? static_cast<float>(half_to_double(to_half(largest / 127.0f))) : largest > 0 ? 1 / by : 0;
        for (int j = 0; j < width; j += kProductBlock) {
            const int at = (i + j) % kProductChunk, block = at / kProductBlock;
            int sums[2] = {};
            for (int k = 0; k < kProductBlock; ++k) {
                to.codes[at + k] = static_cast<int8_t>(std::nearbyint(values[i + j + k] * by));
                sums[k / 16] += to.codes[at + k];
            }
            to.d[block] = d;
            to.sums[block] = static_cast<float>(sums[0] + sums[1]) * (form == TokenForm::of_32 ? d : 1);
            to.halves[2 * block] = static_cast<float>(sums[0]);
            to.halves[2 * block + 1] = static_cast<float>(sums[1]);
        }
    }
}

float rms_factor_reference(const float * values, int n, float eps) {
    double sum = 0.0;
    for (int i = 0; i < n; ++i) {
        sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    return static_cast<float>(1.0 / std::sqrt(sum / n + static_cast<double>(eps)));
}

void weigh_values_reference(const float * values, float factor, const float * weights, int n, float * out) {
    for (int i = 0; i < n; ++i) {
        out[i] = values[i] * factor * weights[i];
    }
}

void gate_values_reference(GateForm form, const float * gate, const float * up, int n, float * out) {
    for (int i = 0; i < n; ++i) {
        const auto x = static_cast<double>(gate[i]);
        const double y = form == GateForm::gelu ? static_cast<double>(kGeluLinear) * x * (1.0 + static_cast<double>(kGeluCubic) * x * x) : x;
        out[i] = static_cast<float>(x / (1.0 + std::exp(-y)) * static_cast<double>(up[i]));
    }
}

}  // namespace edgekv
