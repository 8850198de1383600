// Two rows of weights with four tokens: eight running sums stay in registers, and a row's block is unpacked once for all four. Included once
// for each instruction set, by a file that defines `Integers::dot`.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "kernels/products/products_internal.h"

namespace edgekv {
namespace {

constexpr int kRows = 2, kTokens = 4;

// The f16 pairs of two blocks' factors.
inline int32_t factors(const void * block) {
    int32_t pair;
    std::memcpy(&pair, block, sizeof pair);
    return pair;
}

inline float sum_of(__m256 x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

template <int T>
inline __m256 spread(__m128 x) {
    return _mm256_broadcastss_ps(_mm_permute_ps(x, T * 0x55));
}

// The products of NR rows and NT tokens: out[NT][stride].
template <int NR, int NT>
inline void tile(int n_blocks, const WeightBlock * const * rows, const TokenBlock * const * tokens, float * out, size_t stride) {
    __m256 sums[NR][NT];
    __m128 least[NR];  // for each token: what the rows' m add
    for (int r = 0; r < NR; ++r) {
        least[r] = _mm_setzero_ps();
        for (int t = 0; t < NT; ++t) {
            sums[r][t] = _mm256_setzero_ps();
        }
    }
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i apart = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    for (int b = 0; b < n_blocks; ++b) {
        const __m128i pairs = _mm_setr_epi32(factors(tokens[0] + b), NT > 1 ? factors(tokens[NT > 1 ? 1 : 0] + b) : 0,
                                             NT > 2 ? factors(tokens[NT > 2 ? 2 : 0] + b) : 0, NT > 3 ? factors(tokens[NT > 3 ? 3 : 0] + b) : 0);
        const __m256 ds = _mm256_permutevar8x32_ps(_mm256_cvtph_ps(pairs), apart);
        const __m128 d_tokens = _mm256_castps256_ps128(ds), s_tokens = _mm256_extractf128_ps(ds, 1);
        const __m256 d_token[kTokens] = {spread<0>(d_tokens), spread<1>(d_tokens), spread<2>(d_tokens), spread<3>(d_tokens)};
        __m256i codes[NR];
        __m256 d_row[NR];
        for (int r = 0; r < NR; ++r) {
            const __m128i nibbles = _mm_loadu_si128(reinterpret_cast<const __m128i *>(rows[r][b].codes));
            codes[r] = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(nibbles, 4), nibbles), low);
            const __m128 dm = _mm_cvtph_ps(_mm_cvtsi32_si128(factors(rows[r] + b)));
            d_row[r] = _mm256_broadcastss_ps(dm);
            least[r] = _mm_fmadd_ps(_mm_broadcastss_ps(_mm_movehdup_ps(dm)), s_tokens, least[r]);
        }
        for (int t = 0; t < NT; ++t) {
            const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(tokens[t][b].codes));
            for (int r = 0; r < NR; ++r) {
                const __m256 products = _mm256_cvtepi32_ps(Integers::dot(codes[r], x));
                sums[r][t] = _mm256_fmadd_ps(_mm256_mul_ps(d_row[r], d_token[t]), products, sums[r][t]);
            }
        }
    }
    for (int r = 0; r < NR; ++r) {
        alignas(16) float added[4];
        _mm_store_ps(added, least[r]);
        for (int t = 0; t < NT; ++t) {
            out[static_cast<size_t>(t) * stride + static_cast<size_t>(r)] = sum_of(sums[r][t]) + added[t];
        }
    }
}

template <int NT>
void rows_with(const ProductProblem & p, int first, int end, int token) {
    const TokenBlock * tokens[NT];
    for (int t = 0; t < NT; ++t) {
        tokens[t] = reinterpret_cast<const TokenBlock *>(p.tokens + static_cast<size_t>(token + t) * p.token_stride);
    }
    const auto row = [&](int r) { return reinterpret_cast<const WeightBlock *>(p.weights + static_cast<size_t>(r) * p.weight_stride); };
    float * out = p.out + static_cast<size_t>(token) * p.out_stride;
    int r = first;
    for (; r + kRows <= end; r += kRows) {
        const WeightBlock * const rows[kRows] = {row(r), row(r + 1)};
        tile<kRows, NT>(p.n_blocks, rows, tokens, out + r, p.out_stride);
    }
    if (r < end) {
        const WeightBlock * const rows[1] = {row(r)};
        tile<1, NT>(p.n_blocks, rows, tokens, out + r, p.out_stride);
    }
}

void multiply(const ProductProblem & p, int first, int end) {
    int t = 0;
    for (; t + kTokens <= p.n_tokens; t += kTokens) {
        rows_with<kTokens>(p, first, end, t);
    }
    switch (p.n_tokens - t) {
        case 3: return rows_with<3>(p, first, end, t);
        case 2: return rows_with<2>(p, first, end, t);
        case 1: return rows_with<1>(p, first, end, t);
        default: return;
    }
}

}  // namespace
}  // namespace edgekv
