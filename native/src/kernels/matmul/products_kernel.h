// The product of a panel with tokens, and the tokens' quantising, over the Simd of the translation unit that includes this.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/matmul/products_walk.h"

namespace edgekv {
namespace {

constexpr int kVectors = kProductRows / Simd::kLanes;
constexpr int kTokens  = Simd::kLanes / 2;  // tokens whose sums fit the registers

// Whether codes are stored 128 larger, because the instructions take unsigned codes.
template <class Type>
constexpr bool flipped() { return Type::kRange == CodeRange::i8 && Simd::kBiasedK; }

// Most dot products in a chain for codes of 4, 5 and 6 bits; Simd has the number for 3 bits.
constexpr int dots_of(CodeRange range) { return Simd::kCodeDots / (range == CodeRange::u4 ? 2 : range == CodeRange::u5 ? 4 : 8); }

// The dot products of a block's codes with those of NT tokens, from the tokens' value `from` on.
template <class Type, int NT>
inline void block_sums(const uint8_t (*codes)[kProductRows][4], const TokenChunk * x, int from, Simd::I (&sums)[kVectors][NT]) {
    constexpr bool i8 = Type::kRange == CodeRange::i8;
    constexpr int steps = Type::kWidth / 4, dots = dots_of(Type::kRange) < steps ? dots_of(Type::kRange) : steps;
    Simd::I part[kVectors][NT];
#pragma GCC unroll 8
    for (int step = 0; step < steps; ++step) {
        Simd::I rows[kVectors];
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
            rows[v] = Simd::iload(codes[step] + v * Simd::kLanes);
        }
#pragma GCC unroll 8
        for (int t = 0; t < NT; ++t) {
            const Simd::I token = Simd::idup4(reinterpret_cast<const char *>(x[t].codes) + from + 4 * step);
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) {
                if (i8) {
                    sums[v][t] = Simd::dot4(step == 0 ? Simd::izero() : sums[v][t], rows[v], token);
                    continue;
                }
                part[v][t] = Simd::code_dot(step % dots == 0 ? Simd::izero() : part[v][t], rows[v], token);
                if (dots > 2) {
                    Simd::in_register(part[v][t]);  // otherwise gcc moves all additions after all products, through memory
                }
                if (step % dots == dots - 1) {
                    sums[v][t] = Simd::code_sums(step < dots ? Simd::izero() : sums[v][t], part[v][t]);
                }
            }
        }
    }
}

// Multiplies n_blocks blocks of 32 of a panel by NT tokens.
template <class Type, int NT>
inline void tile(const Panel & panel, const TokenChunk * x, int n_blocks, float (*sums)[kProductRows]) {
    constexpr int width = Type::kWidth;
    constexpr bool least = Type::kRange != CodeRange::i8 || flipped<Type>();

    alignas(64) float apart[NT][kProductRows] = {};  // before the chunk's one factor
    float (*to)[kProductRows] = Type::kOf256 ? apart : sums;

    for (int b = 0; b < n_blocks * kProductBlock / width; ++b) {
        Simd::I found[kVectors][NT];
        block_sums<Type, NT>(panel.codes + b * width / 4, x, b * width, found);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
            const Simd::F d = Simd::load(panel.d[b] + v * Simd::kLanes), m = Simd::load(panel.m[b] + v * Simd::kLanes);
#pragma GCC unroll 8
            for (int t = 0; t < NT; ++t) {
                float * at = to[t] + v * Simd::kLanes;
                Simd::F sum = Simd::load(at);
                if (least) {
                    sum = Simd::fma(m, Simd::set1(width == 16 ? x[t].halves[b] : x[t].sums[b]), sum);
                }
                sum = Simd::fma(Type::kOf256 ? d : Simd::mul(d, Simd::set1(x[t].d[b])), Simd::to_float(found[v][t]), sum);
                Simd::store(at, sum);
            }
        }
    }
    for (int t = 0; Type::kOf256 && t < NT; ++t) {
        for (int v = 0; v < kVectors; ++v) {
            float * at = sums[t] + v * Simd::kLanes;
            Simd::store(at, Simd::fma(Simd::set1(x[t].d[0]), Simd::load(apart[t] + v * Simd::kLanes), Simd::load(at)));
        }
    }
}

template <class Type>
void all_tiles(const Panel & panel, const TokenChunk * x, int n_tokens, int n_blocks, float (*sums)[kProductRows]) {
    int t = 0;
    for (; t + kTokens <= n_tokens; t += kTokens) {
        tile<Type, kTokens>(panel, x + t, n_blocks, sums + t);
    }
    if (kTokens > 4 && t + 4 <= n_tokens) {
        tile<Type, 4>(panel, x + t, n_blocks, sums + t);
        t += 4;
    }
    if (t + 2 <= n_tokens) {
        tile<Type, 2>(panel, x + t, n_blocks, sums + t);
        t += 2;
    }
    if (t < n_tokens) {
        tile<Type, 1>(panel, x + t, n_blocks, sums + t);
    }
}

template <class Type>
void multiply_type(const ProductProblem & p, int first, int end) {
    alignas(64) Panel panel;
    alignas(64) float sums[kPass][kProductRows];
    for (int row = first; row < end; row += kProductRows) {
        Ahead<Type> ahead(p, row);
        for (int token = 0; token < p.n_tokens; token += kPass) {
            const int n_tokens = std::min(kPass, p.n_tokens - token);
            std::fill(sums[0], sums[n_tokens], 0.0f);
            for (int chunk = 0; chunk * kProductChunk < p.n_values; ++chunk) {
                const int n_blocks = std::min(kChunkBlocks, p.n_values / kProductBlock - chunk * kChunkBlocks);
                unpack<Type, flipped<Type>()>(rows_at<Type>(p, row, end, chunk), n_blocks, panel);
                if (token == 0) {
                    ahead.at(chunk);
                    ahead.fetch(kProductRows);
                }
                const TokenChunk * x = p.tokens + static_cast<size_t>(chunk) * p.token_stride + token;
                all_tiles<Type>(panel, x, n_tokens, n_blocks, sums);
            }
            for (int t = 0; t < n_tokens; ++t) {
                store_sixteen(p, token + t, row, end, sums[t]);
            }
        }
    }
}

[[maybe_unused]] void multiply(const ProductProblem & p, int first, int end) {
    with_type(p, [&](auto type) { multiply_type<decltype(type)>(p, first, end); });
}

inline float largest_of(const float * values, int n) {
    __m256 found = _mm256_setzero_ps();
    for (int i = 0; i < n; i += 8) {
        found = _mm256_max_ps(found, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_loadu_ps(values + i)));
    }
    return largest_of(found);
}

inline __m256i rounded(const float * values, __m256 by) { return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(values), by)); }

// Computes the codes of 32 values, and the sums of each 16 codes.
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
