// The product of rows of the K types with a few tokens, over the Simd of the translation unit that includes this. Their scales are integers, so 256 codes
// of a row and of a token make one integer, and one factor turns it into a float. The cost is the reading of the weights.
#pragma once

#include <utility>

#include "kernels/matmul/products_eights.h"

namespace edgekv {
namespace {

constexpr int kRowCodes   = 4 * Simd::kLanes;           // of a row, in a vector
constexpr int kRowVectors = kProductChunk / kRowCodes;
constexpr int kRowBlocks  = kRowCodes / kProductBlock;  // 1 or 2

// What 256 codes of a row are multiplied by.
struct RowFactors {
    Simd::I scales[2];   // i16, eight of them in every group
    __m128i least[2];    // i16, eight each: the token's sums are multiplied by them
    __m128 d;            // lane 0: the factor of the codes, lane 1: of what is subtracted
};

// ... by scales of 32 codes. Two f16 precede the scales.
template <class Block>
RowFactors factors_of_32(const Block & block) {
    const __m128i bytes = six_bits(block.scales);
    int32_t d;
    std::memcpy(&d, &block.d, sizeof d);
    const __m256i words = _mm256_cvtepu8_epi16(bytes);
    const Simd::I scales = Simd::dup_group(_mm256_castsi256_si128(words));
    return {{scales, scales}, {_mm256_extracti128_si256(words, 1), _mm_setzero_si128()}, _mm_cvtph_ps(_mm_cvtsi32_si128(d))};
}

// The nibbles of the codes from block B on, where 32 bytes hold the codes of two blocks.
template <int B, class Block>
[[gnu::always_inline]] inline Simd::I nibbles_of_row(const Block & block) {
    return low_nibbles(Simd::moved<4 * (B % 2), 4>(Simd::iload_twice(block.codes + 32 * (B / 2))));
}

// Each of the K types has vector<B>(), the codes from block B on, and row_factors().
template <class Type>
struct RowOf;

template <>
struct RowOf<Q4_K<false>> : Q4_K<false> {
    static constexpr int kLeast = -1;
    template <int B>
    [[gnu::always_inline]] static Simd::I vector(const Block & block) { return nibbles_of_row<B>(block); }
    [[gnu::always_inline]] static RowFactors row_factors(const Block & block) { return factors_of_32(block); }
};

template <>
struct RowOf<Q5_K> : Q5_K {
    static constexpr int kLeast = -1;
    template <int B>
    [[gnu::always_inline]] static Simd::I vector(const Block & block) {
        return Simd::ior(nibbles_of_row<B>(block), Simd::iand(Simd::moved<B - 4, B - 3>(Simd::iload_twice(block.high)), bytes_of(16)));
    }
    [[gnu::always_inline]] static RowFactors row_factors(const Block & block) { return factors_of_32(block); }
};

template <>
struct RowOf<Q6_K> : Q6_K {
    static constexpr int kLeast = -32;
    template <int B>
    [[gnu::always_inline]] static Simd::I vector(const Block & block) {
        constexpr int half = B / 4, quarter = B % 4;
        const Simd::I low = Simd::iload(block.low + 64 * half + 32 * (quarter % 2));
        const Simd::I top = Simd::moved<2 * quarter - 4, 2 * quarter - 2>(Simd::iload_twice(block.high + 32 * half));
        return Simd::ior(quarter < 2 ? low_nibbles(low) : high_nibbles(low), Simd::iand(top, bytes_of(0x30)));
    }
    [[gnu::always_inline]] static RowFactors row_factors(const Block & block) {
        const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i *>(block.scales)));
        const __m128i low = _mm256_castsi256_si128(words), high = _mm256_extracti128_si256(words, 1);
        return {{Simd::dup_group(low), Simd::dup_group(high)}, {low, high}, _mm_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(block.d)))};
    }
};

// The order of bytes in which a group's eight scales become a vector's factors for Simd::scaled_sums(): each of its codes meets its scale.
template <int WIDTH>
struct ScalePlaces {
    alignas(64) uint8_t at[kRowVectors][kRowCodes];

    constexpr ScalePlaces() : at() {
        for (int v = 0; v < kRowVectors; ++v) {
            for (int i = 0; i < kRowCodes; ++i) {
                const int scale = (v * kRowCodes + i) / WIDTH % 8;
                at[v][i] = static_cast<uint8_t>(Simd::kWideSums && i % 4 > 1 ? 0x80 : 2 * scale + i % 2);
            }
        }
    }
};
template <int WIDTH>
constexpr ScalePlaces<WIDTH> kScalePlaces;

// A token's 256 codes: their sums by WIDTH as i16, and its factors in the lanes of RowFactors::d.
struct TokenSums {
    __m128i words[2];
    __m128 d;
};

inline __m128i as_words(const float * sums) {
    const __m256i ints = _mm256_cvtps_epi32(_mm256_loadu_ps(sums));
    return _mm_packs_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256(ints, 1));
}

template <class Row>
inline TokenSums sums_of(const TokenChunk & x) {
    const __m128 d = _mm_setr_ps(x.d[0], Row::kLeast * x.d[0], 0.0f, 0.0f);
    return Row::kWidth == 32 ? TokenSums{{as_words(x.sums), _mm_setzero_si128()}, d} : TokenSums{{as_words(x.halves), as_words(x.halves + 8)}, d};
}

inline float sum_of(__m128 a) {
    const __m128 pairs = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)));
}

// Adds the products of a row's vector V with the tokens' codes.
template <class Row, int V, int NT>
[[gnu::always_inline]] inline void plus_vector(const typename Row::Block & block, const RowFactors & factors, const TokenChunk * const (&x)[NT], Simd::I (&found)[NT]) {
    const Simd::I codes = Row::template vector<V * kRowBlocks>(block);
    const Simd::I by    = Simd::shuffle_bytes(factors.scales[V * kRowCodes / Row::kWidth / 8], Simd::iload(kScalePlaces<Row::kWidth>.at[V]));
#pragma GCC unroll 4
    for (int t = 0; t < NT; ++t) {
        const Simd::I part = Simd::code_dot(Simd::izero(), codes, Simd::iload(x[t]->codes + V * kRowCodes));
        found[t] = Simd::scaled_sums(V == 0 ? Simd::izero() : found[t], part, by);
    }
}

template <class Row, int NT, int... V>
[[gnu::always_inline]] inline void plus_vectors(const typename Row::Block & block, const RowFactors & factors, const TokenChunk * const (&x)[NT],
                                                Simd::I (&found)[NT], std::integer_sequence<int, V...>) {
    (plus_vector<Row, V, NT>(block, factors, x, found), ...);
}

// Multiplies ROWS rows by up to NT tokens. With fewer rows or tokens, the last one fills the missing places.
template <class Row, int ROWS, int NT>
void multiply_rows_of_k(const ProductProblem & p, int row, int end) {
    using Block = typename Row::Block;
    const Block * at[ROWS];
    Simd::F sums[ROWS][NT];
    __m128 least[ROWS][NT];
    for (int r = 0; r < ROWS; ++r) {
        at[r] = reinterpret_cast<const Block *>(p.weights + static_cast<size_t>(std::min(row + r, end - 1)) * p.weight_stride);
        for (int t = 0; t < NT; ++t) {
            sums[r][t]  = Simd::zero();
            least[r][t] = _mm_setzero_ps();
        }
    }
    Ahead<Row, ROWS> ahead(p, row);

    for (int chunk = 0; chunk * kProductChunk < p.n_values; ++chunk) {
        const TokenChunk * x[NT];
        TokenSums of[NT];
        for (int t = 0; t < NT; ++t) {
            x[t]  = p.tokens + static_cast<size_t>(chunk) * p.token_stride + std::min(t, p.n_tokens - 1);
            of[t] = sums_of<Row>(*x[t]);
        }
        ahead.at(chunk);
        ahead.fetch(ROWS);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) {
            const Block & block = at[r][chunk];
            const RowFactors factors = Row::row_factors(block);
            Simd::I found[NT];
            plus_vectors<Row, NT>(block, factors, x, found, std::make_integer_sequence<int, kRowVectors>());
#pragma GCC unroll 4
            for (int t = 0; t < NT; ++t) {
                const __m128 d = _mm_mul_ps(factors.d, of[t].d);
                __m128i under  = _mm_madd_epi16(factors.least[0], of[t].words[0]);
                if (Row::kWidth == 16) {
                    under = _mm_add_epi32(under, _mm_madd_epi16(factors.least[1], of[t].words[1]));
                }
                sums[r][t]  = Simd::fma(Simd::to_float(found[t]), Simd::set1(_mm_cvtss_f32(d)), sums[r][t]);
                least[r][t] = _mm_fmadd_ps(_mm_cvtepi32_ps(under), _mm_permute_ps(d, 0x55), least[r][t]);
            }
        }
    }
    for (int t = 0; t < p.n_tokens; ++t) {
        for (int r = 0; r < ROWS && row + r < end; ++r) {
            p.out_row(t)[row + r] = Simd::sum(sums[r][t]) + sum_of(least[r][t]);
        }
    }
}

// The order of bytes in which Simd::widened() becomes factors for Simd::scaled_sums(): the second if it has kWideSums.
alignas(16) constexpr uint8_t kWordPlaces[2][16] = {
    {0, 0x80, 0, 0x80, 0, 0x80, 0, 0x80, 8, 0x80, 8, 0x80, 8, 0x80, 8, 0x80},
    {0, 0x80, 0x80, 0x80, 0, 0x80, 0x80, 0x80, 8, 0x80, 0x80, 0x80, 8, 0x80, 0x80, 0x80}};

// Multiplies eight rows of Q4_K side by side by up to NT tokens. A vector has eight codes of each row of a set.
template <int NT>
void multiply_eight_of_k(const ProductProblem & p, int row) {
    const auto * blocks = reinterpret_cast<const EightQ4_K *>(p.weights + static_cast<size_t>(row) * p.weight_stride);
    Simd::F sums[kSets][NT];
    __m256 least[NT];
    for (int t = 0; t < NT; ++t) {
        least[t] = _mm256_setzero_ps();
        for (int set = 0; set < kSets; ++set) {
            sums[set][t] = Simd::zero();
        }
    }
    Ahead<Q4_K<true>, 8> ahead(p, row);

    for (int chunk = 0; chunk * kProductChunk < p.n_values; ++chunk) {
        const EightQ4_K & block = blocks[chunk];
        const TokenChunk * x[NT];
        alignas(16) int32_t pairs[NT][4];  // sums of two blocks' codes, as i16
        __m256i under[NT];
        Simd::I found[kSets][NT];
        for (int t = 0; t < NT; ++t) {
            x[t] = p.tokens + static_cast<size_t>(chunk) * p.token_stride + std::min(t, p.n_tokens - 1);
            _mm_store_si128(reinterpret_cast<__m128i *>(pairs[t]), as_words(x[t]->sums));
            under[t] = _mm256_setzero_si256();
            for (int set = 0; set < kSets; ++set) {
                found[set][t] = Simd::izero();
            }
        }
        ahead.at(chunk);
#pragma GCC unroll 4
        for (int pair = 0; pair < kChunkBlocks / 2; ++pair) {
            ahead.fetch(2);
            const __m128i first = six_bits(block.scales[2 * pair]), second = six_bits(block.scales[2 * pair + 1]);
#pragma GCC unroll 2
            for (int set = 0; set < kSets; ++set) {
                Simd::I low[NT], high[NT];
#pragma GCC unroll 4
                for (int piece = 0; piece < 4; ++piece) {
                    const Simd::I bytes = Simd::iload(block.codes + 256 * pair + 64 * piece + 32 * set);
                    const Simd::I below = low_nibbles(bytes), above = high_nibbles(bytes);
#pragma GCC unroll 4
                    for (int t = 0; t < NT; ++t) {
                        const int8_t * codes = x[t]->codes + 64 * pair + 8 * piece;
                        low[t]  = Simd::code_dot(piece == 0 ? Simd::izero() : low[t], below, Simd::dup8(codes));
                        high[t] = Simd::code_dot(piece == 0 ? Simd::izero() : high[t], above, Simd::dup8(codes + kProductBlock));
                    }
                }
                const Simd::I places = Simd::dup16(kWordPlaces[Simd::kWideSums]);
                const Simd::I by_low = Simd::shuffle_bytes(Simd::widened(first, set), places), by_high = Simd::shuffle_bytes(Simd::widened(second, set), places);
#pragma GCC unroll 4
                for (int t = 0; t < NT; ++t) {
                    found[set][t] = Simd::scaled_sums(Simd::scaled_sums(found[set][t], low[t], by_low), high[t], by_high);
                }
            }
            const __m256i mins = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(first, second));
            for (int t = 0; t < NT; ++t) {
                under[t] = _mm256_add_epi32(under[t], _mm256_madd_epi16(mins, _mm256_set1_epi32(pairs[t][pair])));
            }
        }
        const __m256 d = floats(block.d), m = floats(block.dmin);
        for (int t = 0; t < NT; ++t) {
            const __m256 by = times(d, x[t]->d[0]);
            least[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(under[t]), times(m, x[t]->d[0]), least[t]);
            for (int set = 0; set < kSets; ++set) {
                sums[set][t] = Simd::fma(Simd::to_float(found[set][t]), Simd::doubled(by, set), sums[set][t]);
            }
        }
    }
    store_eight(p, row, sums, least);
}

template <class Row>
void multiply_of_k(const ProductProblem & p, int first, int end) {
    constexpr int kRows = 4, kFewRows = Simd::kLanes == 16 ? 2 : 1;  // whose sums fit the registers, with one token and with several
    if (p.n_tokens == 1) {
        for (int row = first; row < end; row += kRows) {
            multiply_rows_of_k<Row, kRows, 1>(p, row, end);
        }
        return;
    }
    for (int row = first; row < end; row += kFewRows) {
        p.n_tokens == 2 ? multiply_rows_of_k<Row, kFewRows, 2>(p, row, end) : multiply_rows_of_k<Row, kFewRows, kFewTokens>(p, row, end);
    }
}

inline void multiply_interleaved_of_k(const ProductProblem & p, int first, int end) {
    for (int row = first; row < end; row += 8) {
        p.n_tokens == 1 ? multiply_eight_of_k<1>(p, row) : p.n_tokens == 2 ? multiply_eight_of_k<2>(p, row) : multiply_eight_of_k<kFewTokens>(p, row);
    }
}

}  // namespace
}  // namespace edgekv
