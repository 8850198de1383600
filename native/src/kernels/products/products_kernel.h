// The product of a panel with tokens, and the walk over rows, chunks and tokens. Included once for each instruction set, by a file that
// defines `Lanes`: vectors of rows, and the sums of their codes' products with a token's.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/products/products_unpack.h"

namespace edgekv {
namespace {

constexpr int kPass = 512;  // tokens whose sums stay in a core's caches


// NT tokens meet n_blocks blocks of 32 of a panel.
template <class Weights, int NT>
inline void tile(const Panel & panel, const TokenChunk * x, int n_blocks, float (*sums)[kProductRows]) {
    constexpr int width = Weights::kWidth, steps = width / 4, vectors = Lanes::kVectors;
    constexpr bool least = Weights::kHasLeast || (Weights::kRange == CodeRange::i8 && Lanes::kFlip);
    using Floats = typename Lanes::Floats;

    alignas(64) float apart[NT][kProductRows] = {};  // before the chunk's one factor
    float (*to)[kProductRows] = Weights::kOf256 ? apart : sums;

    for (int b = 0; b < n_blocks * kProductBlock / width; ++b) {
        typename Lanes::Ints found[vectors][NT];
        Lanes::template multiply<Weights::kRange, steps, NT>(panel.codes + b * steps, x, b * width, found);
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) {
            const Floats d = Lanes::load(panel.d[b] + v * Lanes::kLanes), m = Lanes::load(panel.m[b] + v * Lanes::kLanes);
#pragma GCC unroll 8
            for (int t = 0; t < NT; ++t) {
                float * at = to[t] + v * Lanes::kLanes;
                Floats sum = Lanes::load(at);
                if (least) {
                    sum = Lanes::fma(m, Lanes::all(width == 16 ? x[t].halves[b] : x[t].sums[b]), sum);
                }
                sum = Lanes::fma(Weights::kOf256 ? d : Lanes::mul(d, Lanes::all(x[t].d[b])), Lanes::floats(found[v][t]), sum);
                Lanes::store(at, sum);
            }
        }
    }
    for (int t = 0; Weights::kOf256 && t < NT; ++t) {
        for (int v = 0; v < vectors; ++v) {
            float * at = sums[t] + v * Lanes::kLanes;
            Lanes::store(at, Lanes::fma(Lanes::all(x[t].d[0]), Lanes::load(apart[t] + v * Lanes::kLanes), Lanes::load(at)));
        }
    }
}

template <class Weights>
void all_tiles(const Panel & panel, const TokenChunk * x, int n_tokens, int n_blocks, float (*sums)[kProductRows]) {
    int t = 0;
    for (; t + Lanes::kTokens <= n_tokens; t += Lanes::kTokens) {
        tile<Weights, Lanes::kTokens>(panel, x + t, n_blocks, sums + t);
    }
    if (Lanes::kTokens > 4 && t + 4 <= n_tokens) {
        tile<Weights, 4>(panel, x + t, n_blocks, sums + t);
        t += 4;
    }
    if (t + 2 <= n_tokens) {
        tile<Weights, 2>(panel, x + t, n_blocks, sums + t);
        t += 2;
    }
    if (t < n_tokens) {
        tile<Weights, 1>(panel, x + t, n_blocks, sums + t);
    }
}

// Eight rows from `first` at a chunk. Those behind the matrix's last are its last again; their products are not stored.
template <class Weights>
EightRows eight_rows(const ProductProblem & p, int first, int end, int chunk) {
    EightRows rows;
    for (int r = 0; r < 8; ++r) {
        const int row = p.interleaved ? std::min(first, end - 8) : std::min(first + r, end - 1);
        rows.at[r] = p.weights + static_cast<size_t>(row) * p.weight_stride +
                     static_cast<size_t>(chunk) * (kChunkBlocks / Weights::kBlocks) * sizeof(typename Weights::Block);
    }
    return rows;
}

template <class Weights>
void multiply_type(const ProductProblem & p, int first, int end) {
    constexpr bool flip = Weights::kRange == CodeRange::i8 && Lanes::kFlip;
    alignas(64) Panel panel;
    alignas(64) float sums[kPass][kProductRows];
    for (int row = first; row < end; row += kProductRows) {
        const int n_rows = std::min(kProductRows, end - row);
        for (int token = 0; token < p.n_tokens; token += kPass) {
            const int n_tokens = std::min(kPass, p.n_tokens - token);
            std::fill(sums[0], sums[n_tokens], 0.0f);
            for (int chunk = 0; chunk * kProductChunk < p.n_values; ++chunk) {
                const int n_blocks = std::min(kChunkBlocks, p.n_values / kProductBlock - chunk * kChunkBlocks);
                for (int column = 0; column < kProductRows; column += 8) {
                    unpack<Weights, flip>(eight_rows<Weights>(p, row + column, end, chunk), n_blocks, panel, column);
                }
                const TokenChunk * x = p.tokens + static_cast<size_t>(chunk) * static_cast<size_t>(p.n_tokens) + token;
                all_tiles<Weights>(panel, x, n_tokens, n_blocks, sums);
            }
            for (int t = 0; t < n_tokens; ++t) {
                float * out = p.out + static_cast<size_t>(token + t) * p.out_stride + row;
                std::memcpy(out, sums[t], static_cast<size_t>(n_rows) * sizeof(float));
            }
        }
    }
}

// Of types that ggml repacks.
template <template <bool> class Weights>
void multiply_either(const ProductProblem & p, int first, int end) {
    p.interleaved ? multiply_type<Weights<true>>(p, first, end) : multiply_type<Weights<false>>(p, first, end);
}

void multiply(const ProductProblem & p, int first, int end) {
    switch (p.type) {
        case WeightType::q4_0: return multiply_either<Q4_0>(p, first, end);
        case WeightType::q4_1: return multiply_type<Q4_1>(p, first, end);
        case WeightType::q5_0: return multiply_type<Q5<BlockQ5_0>>(p, first, end);
        case WeightType::q5_1: return multiply_type<Q5<BlockQ5_1>>(p, first, end);
        case WeightType::q8_0: return multiply_type<Q8_0>(p, first, end);
        case WeightType::q4_k: return multiply_either<Q4_K>(p, first, end);
        case WeightType::q5_k: return multiply_type<Q5_K>(p, first, end);
        case WeightType::q6_k: return multiply_type<Q6_K>(p, first, end);
        case WeightType::iq4_nl: return multiply_either<IQ4_NL>(p, first, end);
        case WeightType::iq4_xs: return multiply_type<IQ4_XS>(p, first, end);
        case WeightType::mxfp4: return multiply_either<MXFP4>(p, first, end);
    }
}

inline float largest_of(__m256 x) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

inline float largest_of(const float * values, int n) {
    __m256 found = _mm256_setzero_ps();
    for (int i = 0; i < n; i += 8) {
        found = _mm256_max_ps(found, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_loadu_ps(values + i)));
    }
    return largest_of(found);
}

inline __m256i rounded(const float * values, __m256 by) { return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(values), by)); }

// Codes of 32 values, and the sums of each 16.
inline void quantise_block(const float * values, float by, int8_t * codes, int32_t (&sums)[2]) {
    const __m256 all = _mm256_set1_ps(by);
    const __m256i low  = _mm256_packs_epi32(rounded(values, all), rounded(values + 8, all));
    const __m256i high = _mm256_packs_epi32(rounded(values + 16, all), rounded(values + 24, all));
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(codes), bytes);
    const __m256i fours = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
    const __m256i pairs = _mm256_hadd_epi32(fours, fours), halves = _mm256_hadd_epi32(pairs, pairs);
    sums[0] = _mm256_cvtsi256_si32(halves);
    sums[1] = _mm256_extract_epi32(halves, 4);
}

void quantise(const float * values, int n, TokenForm form, TokenChunk * out, size_t stride) {
    const bool of_32 = form == TokenForm::of_32;
    const int width  = of_32 ? kProductBlock : kProductChunk;
    for (int i = 0; i < n; i += width) {
        TokenChunk & to = out[static_cast<size_t>(i / kProductChunk) * stride];
        const float largest = largest_of(values + i, width);
        const float by = largest > 0 ? 127.0f / largest : 0;
        const float d  = of_32 ? _cvtsh_ss(_cvtss_sh(largest / 127.0f, 0)) : largest > 0 ? 1 / by : 0;
        for (int j = 0; j < width; j += kProductBlock) {
            const int at = (i + j) % kProductChunk, block = at / kProductBlock;
            int32_t sums[2];
            quantise_block(values + i + j, by, to.codes + at, sums);
            to.d[block] = d;
            to.sums[block] = static_cast<float>(sums[0] + sums[1]) * (of_32 ? d : 1);
            to.halves[2 * block] = static_cast<float>(sums[0]);
            to.halves[2 * block + 1] = static_cast<float>(sums[1]);
        }
    }
}

}  // namespace
}  // namespace edgekv
