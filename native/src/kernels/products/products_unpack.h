// Rows of weights unpacked into codes of 8 bits, with the factor d and the least value m of each of their blocks. AVX2, in anonymous namespaces: each
// file that includes this has other flags.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "kernels/products/products_internal.h"
#include "kernels/products/weight_blocks.h"
#include "kernels/simd/vectors_256.h"

namespace edgekv {
namespace {

// 256 values of 16 rows. Four codes of a row lie side by side, as the multiplying instructions take them. d and m are of blocks as wide as the
// type's.
struct Panel {
    alignas(64) uint8_t codes[kProductChunk / 4][kProductRows][4];
    alignas(64) float d[2 * kChunkBlocks][kProductRows];
    alignas(64) float m[2 * kChunkBlocks][kProductRows];
};

// Where the codes of one row lie: in pieces of eight bytes, of its own or of eight rows in turn.
template <bool INTERLEAVED>
struct Codes {
    const uint8_t * at;

    Codes(const uint8_t * codes, int row) : at(codes + (INTERLEAVED ? row * 8 : 0)) {}
    __m128i sixteen(int i) const {
        if (!INTERLEAVED) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i *>(at + 16 * i));
        }
        const auto piece = [&](int n) { return _mm_loadl_epi64(reinterpret_cast<const __m128i *>(at + 64 * n)); };
        return _mm_unpacklo_epi64(piece(2 * i), piece(2 * i + 1));
    }
    __m256i thirty_two(int i) const { return _mm256_set_m128i(sixteen(2 * i + 1), sixteen(2 * i)); }
};

// Nibbles of 16 bytes: the low ones come first.
inline __m256i nibbles(__m128i bytes) {
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes), _mm256_set1_epi8(15));
}

inline __m256i nibbles(__m256i bytes, bool high) { return _mm256_and_si256(high ? _mm256_srli_epi16(bytes, 4) : bytes, _mm256_set1_epi8(15)); }

// 16 in each byte whose bit is set.
inline __m256i sixteens(const uint8_t * bits) {
    int32_t word;
    std::memcpy(&word, bits, sizeof word);
    const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(word), _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    const __m256i mask = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, mask), mask), _mm256_set1_epi8(16));
}

inline __m256i looked_up(const int8_t * table, __m256i codes) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table))), codes);
}

inline __m256 floats(const uint16_t * halves) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(halves))); }
inline __m256 floats(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)); }

// Eight scales and eight mins of six bits, as bytes: scales in the low half.
inline __m128i six_bits(const uint8_t * packed) {
    uint32_t words[3];
    std::memcpy(words, packed, sizeof words);
    const uint32_t low = 0x3f3f3f3f, nibble = 0x0f0f0f0f, top = 0x03030303;
    return _mm_setr_epi32(static_cast<int>(words[0] & low), static_cast<int>((words[2] & nibble) | (words[0] >> 6 & top) << 4),
                          static_cast<int>(words[1] & low), static_cast<int>((words[2] >> 4 & nibble) | (words[1] >> 6 & top) << 4));
}

// The codes' range decides how many of their products a sum of 16 bits takes.
enum class CodeRange { u4, u5, u6, i8 };

// Eight rows at one chunk. Rows that are interleaved begin at the same address.
struct EightRows {
    const char * at[8];

    template <class Block>
    const Block & block(int row, int b) const { return reinterpret_cast<const Block *>(at[row])[b]; }
    // the f16 that stands `offset` bytes into block b of each
    template <class Block>
    __m256 halves(int b, size_t offset = 0) const {
        alignas(16) uint16_t found[8];
        for (int r = 0; r < 8; ++r) {
            std::memcpy(found + r, at[r] + static_cast<size_t>(b) * sizeof(Block) + offset, sizeof *found);
        }
        return floats(found);
    }
};

struct Factors {
    __m256 d, m;

    void store(Panel & to, int block, int column) const {
        _mm256_store_ps(&to.d[block][column], d);
        _mm256_store_ps(&to.m[block][column], m);
    }
};

inline __m256 times(__m256 d, float by) { return _mm256_mul_ps(d, _mm256_set1_ps(by)); }

// Each type below has: codes(), the 32 codes of a row's block; factors(), which stores d and m of eight rows' first n_blocks blocks. A block
// is one of 32 values, whatever ggml's are.

// LEAST: m is that many factors below zero, or kStored. Codes of CodeRange::i8 have it where instructions take unsigned ones.
constexpr int kStored = 0, kUnsigned = 128;

template <CodeRange RANGE, bool OF_256, int WIDTH = 32>
struct Weights {
    static constexpr CodeRange kRange = RANGE;
    static constexpr bool kOf256      = OF_256;
    static constexpr int kWidth       = WIDTH;  // of a block
};

// Types with a d before the codes of each 32, and an m behind it where it is stored.
template <class BLOCK, bool INTERLEAVED, CodeRange RANGE, int LEAST>
struct Of32 : Weights<RANGE, false> {
    using Block = BLOCK;
    static __m128i sixteen(const EightRows & rows, int row, int b) { return Codes<INTERLEAVED>(rows.block<Block>(row, b).codes, row).sixteen(0); }
    static void factors(const EightRows & rows, int n_blocks, Panel & to, int column) {
        for (int b = 0; b < n_blocks; ++b) {
            const __m256 d = INTERLEAVED ? floats(reinterpret_cast<const uint16_t *>(&rows.block<Block>(0, b))) : rows.halves<Block>(b);
            Factors{d, LEAST == kStored ? rows.halves<Block>(b, sizeof(uint16_t)) : times(d, -LEAST)}.store(to, b, column);
        }
    }
};

template <bool INTERLEAVED>
struct Q4_0 : Of32<std::conditional_t<INTERLEAVED, EightQ4_0, BlockQ4_0>, INTERLEAVED, CodeRange::u4, 8> {
    static __m256i codes(const EightRows & rows, int row, int b) {
        const __m128i bytes = Q4_0::sixteen(rows, row, b);
        return nibbles(INTERLEAVED ? _mm_xor_si128(bytes, _mm_set1_epi8(static_cast<char>(0x88))) : bytes);
    }
};

struct Q4_1 : Of32<BlockQ4_1, false, CodeRange::u4, kStored> {
    static __m256i codes(const EightRows & rows, int row, int b) { return nibbles(sixteen(rows, row, b)); }
};

template <class BLOCK, int LEAST>
struct Q5 : Of32<BLOCK, false, CodeRange::u5, LEAST> {
    static __m256i codes(const EightRows & rows, int row, int b) {
        return _mm256_or_si256(nibbles(Q5::sixteen(rows, row, b)), sixteens(rows.block<BLOCK>(row, b).high));
    }
};
using Q5_0 = Q5<BlockQ5_0, 16>;
using Q5_1 = Q5<BlockQ5_1, kStored>;

struct Q8_0 : Of32<BlockQ8_0, false, CodeRange::i8, kUnsigned> {
    static __m256i codes(const EightRows & rows, int row, int b) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(rows.block<Block>(row, b).codes));
    }
};

template <bool INTERLEAVED>
struct IQ4_NL : Of32<std::conditional_t<INTERLEAVED, EightIQ4_NL, BlockIQ4_NL>, INTERLEAVED, CodeRange::i8, kUnsigned> {
    static __m256i codes(const EightRows & rows, int row, int b) { return looked_up(kIq4Values, nibbles(IQ4_NL::sixteen(rows, row, b))); }
};

template <bool INTERLEAVED>
struct MXFP4 : Weights<CodeRange::u5, false> {
    using Block = std::conditional_t<INTERLEAVED, EightMXFP4, BlockMXFP4>;
    static __m256i codes(const EightRows & rows, int row, int b) {
        const __m256i values = looked_up(kMxfp4Values, nibbles(Codes<INTERLEAVED>(rows.block<Block>(row, b).codes, row).sixteen(0)));
        return _mm256_add_epi8(values, _mm256_set1_epi8(kMxfp4Least));
    }
    static void factors(const EightRows & rows, int n_blocks, Panel & to, int column) {
        for (int b = 0; b < n_blocks; ++b) {
            alignas(32) uint32_t bits[8];
            for (int r = 0; r < 8; ++r) {
                const auto * exponents = reinterpret_cast<const uint8_t *>(&rows.block<Block>(r, b));
                const uint32_t e = exponents[INTERLEAVED ? r : 0];
                bits[r] = e < 2 ? 0x00200000u << e : (e - 1) << 23;  // 2^(e - 128)
            }
            const __m256 d = _mm256_castsi256_ps(_mm256_load_si256(reinterpret_cast<const __m256i *>(bits)));
            Factors{d, times(d, -kMxfp4Least)}.store(to, b, column);
        }
    }
};

// d and m of eight rows' eight blocks, from those of one row in a vector.
inline void store_turned(__m256 (&d)[8], __m256 (&m)[8], Panel & to, int first, int column) {
    transpose_8(d);
    transpose_8(m);
    for (int b = 0; b < 8; ++b) {
        Factors{d[b], m[b]}.store(to, first + b, column);
    }
}

inline __m256 negative(__m256 x) { return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f)); }

template <class Block>
void factors_of_k(const EightRows & rows, Panel & to, int column) {
    __m256 d[8], m[8];
    for (int r = 0; r < 8; ++r) {
        const Block & block = rows.block<Block>(r, 0);
        const __m128i bytes = six_bits(block.scales);
        d[r] = times(floats(bytes), _cvtsh_ss(block.d));
        m[r] = times(floats(_mm_srli_si128(bytes, 8)), -_cvtsh_ss(block.dmin));
    }
    store_turned(d, m, to, 0, column);
}

template <bool INTERLEAVED>
struct Q4_K : Weights<CodeRange::u4, true> {
    using Block = std::conditional_t<INTERLEAVED, EightQ4_K, BlockQ4_K>;
    static __m256i codes(const EightRows & rows, int row, int b) {
        return nibbles(Codes<INTERLEAVED>(rows.block<Block>(row, 0).codes, row).thirty_two(b / 2), b % 2 != 0);
    }
    static void factors(const EightRows & rows, int, Panel & to, int column) {
        if constexpr (INTERLEAVED) {
            const Block & block = rows.block<Block>(0, 0);
            for (int b = 0; b < 8; ++b) {
                const __m128i bytes = six_bits(block.scales[b]);
                Factors{_mm256_mul_ps(floats(block.d), floats(bytes)),
                        negative(_mm256_mul_ps(floats(block.dmin), floats(_mm_srli_si128(bytes, 8))))}.store(to, b, column);
            }
        } else {
            factors_of_k<Block>(rows, to, column);
        }
    }
};

struct Q5_K : Weights<CodeRange::u5, true> {
    using Block = BlockQ5_K;
    static __m256i codes(const EightRows & rows, int row, int b) {
        const Block & block = rows.block<Block>(row, 0);
        const __m256i high = _mm256_srl_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(block.high)), _mm_cvtsi32_si128(b));
        return _mm256_or_si256(nibbles(Codes<false>(block.codes, row).thirty_two(b / 2), b % 2 != 0),
                               _mm256_slli_epi16(_mm256_and_si256(high, _mm256_set1_epi8(1)), 4));
    }
    static void factors(const EightRows & rows, int, Panel & to, int column) { factors_of_k<Block>(rows, to, column); }
};

struct Q6_K : Weights<CodeRange::u6, true, 16> {
    using Block = BlockQ6_K;
    static __m256i codes(const EightRows & rows, int row, int b) {
        const Block & block = rows.block<Block>(row, 0);
        const int half = b / 4, quarter = b % 4;
        const __m256i high = _mm256_srl_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(block.high + 32 * half)), _mm_cvtsi32_si128(2 * quarter));
        return _mm256_or_si256(nibbles(Codes<false>(block.low + 64 * half, row).thirty_two(quarter % 2), quarter >= 2),
                               _mm256_slli_epi16(_mm256_and_si256(high, _mm256_set1_epi8(3)), 4));
    }
    static void factors(const EightRows & rows, int, Panel & to, int column) {
        for (int half = 0; half < 2; ++half) {
            __m256 d[8], m[8];
            for (int r = 0; r < 8; ++r) {
                const Block & block = rows.block<Block>(r, 0);
                const __m128i scales = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(block.scales + 8 * half));
                d[r] = times(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(scales)), _cvtsh_ss(block.d));
                m[r] = times(d[r], -32);
            }
            store_turned(d, m, to, 8 * half, column);
        }
    }
};

struct IQ4_XS : Weights<CodeRange::i8, true> {
    using Block = BlockIQ4_XS;
    static __m256i codes(const EightRows & rows, int row, int b) {
        return looked_up(kIq4Values, nibbles(Codes<false>(rows.block<Block>(row, 0).codes, row).sixteen(b)));
    }
    static void factors(const EightRows & rows, int, Panel & to, int column) {
        __m256 d[8], m[8];
        for (int r = 0; r < 8; ++r) {
            const Block & block = rows.block<Block>(r, 0);
            alignas(32) int32_t scales[8];
            for (int b = 0; b < 8; ++b) {
                scales[b] = ((block.low[b / 2] >> 4 * (b % 2) & 15) | (block.high >> 2 * b & 3) << 4) - 32;
            }
            d[r] = times(_mm256_cvtepi32_ps(_mm256_load_si256(reinterpret_cast<const __m256i *>(scales))), _cvtsh_ss(block.d));
            m[r] = times(d[r], -kUnsigned);
        }
        store_turned(d, m, to, 0, column);
    }
};

// Fills columns [column, column + 8) with n_blocks blocks. FLIP: signed codes become unsigned.
template <class Type, bool FLIP>
void unpack(const EightRows & rows, int n_blocks, Panel & to, int column) {
    for (int b = 0; b < n_blocks; ++b) {
        __m256 turned[8];
        for (int r = 0; r < 8; ++r) {
            const __m256i codes = Type::codes(rows, r, b);
            turned[r] = _mm256_castsi256_ps(FLIP ? _mm256_xor_si256(codes, _mm256_set1_epi8(-128)) : codes);
        }
        transpose_8(turned);
        for (int i = 0; i < 8; ++i) {
            _mm256_store_ps(reinterpret_cast<float *>(to.codes[8 * b + i][column]), turned[i]);
        }
    }
    Type::factors(rows, n_blocks, to, column);
}

}  // namespace
}  // namespace edgekv
