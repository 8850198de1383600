// Two rows of weights with four tokens: eight running sums stay in registers, and a row's block is unpacked once for all four. Included once
// for each instruction set, by a file that defines `Integers::dot`.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "kernels/products/products_internal.h"

namespace edgekv {
namespace {

constexpr int kRows = 2;
constexpr size_t kAhead = 2048;  // bytes of weights; rows are too short for the processor to find the next one in time

inline float sum_of(__m256 x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

// Blocks of rows, ready to meet tokens. `with` gives sums of four products each.
struct RowQ4_1 {
    using Block = BlockQ4_1;

    explicit RowQ4_1(const Block & block) {
        const __m256i halves = _mm256_setr_epi64x(0, 0, 4, 4);  // the second half of a block's codes lies four bits higher
        const __m128i nibbles = _mm_loadu_si128(reinterpret_cast<const __m128i *>(block.codes));
        codes = _mm256_and_si256(_mm256_srlv_epi64(_mm256_broadcastsi128_si256(nibbles), halves), _mm256_set1_epi8(15));
        int32_t factors;
        std::memcpy(&factors, &block, sizeof factors);
        dm = _mm_cvtph_ps(_mm_set1_epi32(factors));
    }
    __m256i with(__m256i token) const { return Integers::dot(codes, token); }
    __m256 d() const { return _mm256_broadcastss_ps(dm); }
    // for each token: the part of `sums` that comes from the block's m
    __m128 least(__m128 s_tokens, __m128 sums) const { return _mm_fmadd_ps(_mm_movehdup_ps(dm), s_tokens, sums); }

    __m256i codes;
    __m128 dm;
};

struct RowQ8_0 {
    using Block = BlockQ8_0;

    explicit RowQ8_0(const Block & block)
        : codes(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(block.codes))), sizes(_mm256_abs_epi8(codes)), factor(block.d) {}
    __m256i with(__m256i token) const { return Integers::dot(sizes, _mm256_sign_epi8(token, codes)); }
    __m256 d() const { return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(factor))); }
    __m128 least(__m128, __m128 sums) const { return sums; }

    __m256i codes, sizes;
    uint16_t factor;
};

// The products of NR rows and NT tokens: out[NT][stride]. Loops are unrolled early, or the compiler keeps the sums in memory besides.
template <class Row, int NR, int NT>
inline void tile(int n_blocks, const typename Row::Block * const * rows, const TokenBlocks * tokens, float * out, size_t stride) {
    __m256 sums[NR][NT];
    __m128 least[NR];
#pragma GCC unroll 2
    for (int r = 0; r < NR; ++r) {
        least[r] = _mm_setzero_ps();
#pragma GCC unroll 4
        for (int t = 0; t < NT; ++t) {
            sums[r][t] = _mm256_setzero_ps();
        }
    }
    for (int b = 0; b < n_blocks; ++b) {
        const TokenBlocks & x = tokens[b];
        const __m128 s_tokens = _mm_loadu_ps(x.s);
        const Row blocks[2] = {Row(rows[0][b]), Row(rows[NR - 1][b])};
        __m256 d_row[NR];
#pragma GCC unroll 2
        for (int r = 0; r < NR; ++r) {
            d_row[r] = blocks[r].d();
            least[r] = blocks[r].least(s_tokens, least[r]);
        }
#pragma GCC unroll 4
        for (int t = 0; t < NT; ++t) {
            const __m256i token = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(x.codes[t]));
            const __m256 d_token = _mm256_broadcast_ss(x.d + t);
#pragma GCC unroll 2
            for (int r = 0; r < NR; ++r) {
                sums[r][t] = _mm256_fmadd_ps(_mm256_mul_ps(d_row[r], d_token), _mm256_cvtepi32_ps(blocks[r].with(token)), sums[r][t]);
            }
        }
    }
#pragma GCC unroll 2
    for (int r = 0; r < NR; ++r) {
        alignas(16) float added[4];
        _mm_store_ps(added, least[r]);
#pragma GCC unroll 4
        for (int t = 0; t < NT; ++t) {
            out[static_cast<size_t>(t) * stride + static_cast<size_t>(r)] = sum_of(sums[r][t]) + added[t];
        }
    }
}

template <class Row, int NT>
void rows_with(const ProductProblem & p, int first, int end, int token) {
    const TokenBlocks * tokens = p.tokens + static_cast<size_t>(token / kProductTokens) * static_cast<size_t>(p.n_blocks);
    const auto row = [&](int r) { return reinterpret_cast<const typename Row::Block *>(p.weights + static_cast<size_t>(r) * p.weight_stride); };
    float * out = p.out + static_cast<size_t>(token) * p.out_stride;
    int r = first;
    for (; r + kRows <= end; r += kRows) {
        const typename Row::Block * const rows[kRows] = {row(r), row(r + 1)};
        if (token == 0) {
            const char * ahead = reinterpret_cast<const char *>(row(r)) + kAhead;
            for (size_t i = 0; i < kRows * p.weight_stride; i += 64) {
                _mm_prefetch(ahead + i, _MM_HINT_T0);
            }
        }
        tile<Row, kRows, NT>(p.n_blocks, rows, tokens, out + r, p.out_stride);
    }
    if (r < end) {
        const typename Row::Block * const rows[1] = {row(r)};
        tile<Row, 1, NT>(p.n_blocks, rows, tokens, out + r, p.out_stride);
    }
}

template <class Row>
void multiply_type(const ProductProblem & p, int first, int end) {
    int t = 0;
    for (; t + kProductTokens <= p.n_tokens; t += kProductTokens) {
        rows_with<Row, kProductTokens>(p, first, end, t);
    }
    switch (p.n_tokens - t) {
        case 3: return rows_with<Row, 3>(p, first, end, t);
        case 2: return rows_with<Row, 2>(p, first, end, t);
        case 1: return rows_with<Row, 1>(p, first, end, t);
        default: return;
    }
}

void multiply(const ProductProblem & p, int first, int end) {
    p.type == WeightType::q4_1 ? multiply_type<RowQ4_1>(p, first, end) : multiply_type<RowQ8_0>(p, first, end);
}

}  // namespace
}  // namespace edgekv
