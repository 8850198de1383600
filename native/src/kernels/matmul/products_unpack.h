// Rows of weights unpacked into codes of 8 bits, with the factor d and the least value m of each of their blocks, over the Simd of the
// translation unit that includes this.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/matmul/products_internal.h"
#include "kernels/matmul/weight_blocks.h"
#include "kernels/simd/vectors_256.h"

namespace edgekv {
namespace {

// 256 values of 16 rows. Four codes of a row lie side by side, as the multiplying instructions need them. d and m belong to blocks of the
// type's width.
struct Panel {
    alignas(64) uint8_t codes[kProductChunk / 4][kProductRows][4];
    alignas(64) float d[2 * kChunkBlocks][kProductRows];
    alignas(64) float m[2 * kChunkBlocks][kProductRows];
};

// Sixteen rows at one chunk, by four: so many addresses fit the registers. Eight interleaved rows begin at the same address.
struct Rows {
    const char * quarter[4];
    size_t stride;  // bytes to the next row of a quarter
    [[gnu::always_inline]] const char * at(int row) const { return quarter[row / 4] + static_cast<size_t>(row % 4) * stride; }
};

// 16 codes each of a block's first and second half, in the groups of a vector: for rows r, r + 4 and so on.
struct CodePair {
    Simd::I low, high;
};

// The codes of a block and of its partner.
struct CodeCouple {
    CodePair of[2];
};

inline CodePair part(CodePair codes, int) { return codes; }
inline CodePair part(const CodeCouple & codes, int i) { return codes.of[i]; }

// 16 bytes of codes of rows r, r + 4 and so on, from byte `byte` of each row's codes on; codes begin at `codes`. Interleaved rows have pieces of
// eight bytes, one for each row.
template <bool INTERLEAVED>
[[gnu::always_inline]] inline Simd::I sixteen(const Rows & rows, int r, size_t codes, size_t byte) {
    return Simd::lanes16([&](int group) __attribute__((always_inline)) {
        const char * at = rows.at(r + 4 * group) + codes;
        if (!INTERLEAVED) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i *>(at + byte));
        }
        const char * piece = at + 8 * byte + static_cast<size_t>((r + 4 * group) % 8 * 8);
        return _mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(piece)), _mm_loadl_epi64(reinterpret_cast<const __m128i *>(piece + 64)));
    });
}

inline Simd::I bytes_of(uint8_t x) { return Simd::iset1(static_cast<int>(0x01010101u * x)); }
inline Simd::I low_nibbles(Simd::I bytes) { return Simd::iand(bytes, bytes_of(15)); }
inline Simd::I high_nibbles(Simd::I bytes) { return low_nibbles(Simd::right<4>(bytes)); }
inline CodePair nibbles(Simd::I bytes) { return {low_nibbles(bytes), high_nibbles(bytes)}; }
// Splits 32 bytes: the low nibbles are one block, the high ones another.
inline CodeCouple nibbles(CodePair bytes) {
    return {{{low_nibbles(bytes.low), low_nibbles(bytes.high)}, {high_nibbles(bytes.low), high_nibbles(bytes.high)}}};
}

inline CodePair looked_up(const void * table, CodePair codes) {
    const Simd::I values = Simd::dup16(table);
    return {Simd::shuffle_bytes(values, codes.low), Simd::shuffle_bytes(values, codes.high)};
}

// Joins codes with their separately stored upper bits.
inline CodePair joined(CodePair low, CodePair upper) {
    return {Simd::iadd(low.low, Simd::left<4>(upper.low)), Simd::iadd(low.high, Simd::left<4>(upper.high))};
}

inline __m256 floats(const uint16_t * halves) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(halves))); }
inline __m256 floats(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)); }

// Eight scales and eight mins of six bits, as bytes: scales in the low half. Reads 16 bytes.
inline __m128i six_bits(const uint8_t * packed) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i *>(packed));
    const __m128i low   = _mm_srlv_epi32(_mm_shuffle_epi32(words, 0x98), _mm_setr_epi32(0, 0, 0, 4));  // words 0, 2, 1, 2
    const __m128i top   = _mm_srli_epi32(_mm_shuffle_epi32(words, 0x50), 2);                           // words 0, 0, 1, 1
    return _mm_or_si128(_mm_and_si128(low, _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f)),
                        _mm_and_si128(top, _mm_setr_epi32(0, 0x30303030, 0, 0x30303030)));
}

// The codes' range decides how many of their products fit a sum of 16 bits.
enum class CodeRange { u4, u5, u6, i8 };

struct Factors {
    __m256 d, m;

    void store(Panel & to, int block, int column) const {
        _mm256_store_ps(&to.d[block][column], d);
        _mm256_store_ps(&to.m[block][column], m);
    }
};

// Eight of the sixteen rows.
struct EightRows {
    const Rows & rows;
    int from;

    [[gnu::always_inline]] const char * at(int row) const { return rows.at(from + row); }

    template <class Block>
    const Block & block(int row, int b) const { return reinterpret_cast<const Block *>(at(row))[b]; }
    // each row's first two f16s of block b
    template <class Block>
    Factors halves(int b) const {
        const size_t skip = static_cast<size_t>(b) * sizeof(Block);
        const auto two  = [&](int row) __attribute__((always_inline)) { return _mm_cvtsi32_si128(four_bytes(at(row) + skip)); };
        const auto four = [&](int row) __attribute__((always_inline)) {
            return _mm_unpacklo_epi32(_mm_unpacklo_epi16(two(row), two(row + 1)), _mm_unpacklo_epi16(two(row + 2), two(row + 3)));
        };
        const __m128i low = four(0), high = four(4);
        return {_mm256_cvtph_ps(_mm_unpacklo_epi64(low, high)), _mm256_cvtph_ps(_mm_unpackhi_epi64(low, high))};
    }
};

inline __m256 times(__m256 d, float by) { return _mm256_mul_ps(d, _mm256_set1_ps(by)); }

// Each type below has codes(), the codes of block b and of its partner for rows r, r + 4 and so on, and factors(), which stores d and m of eight
// rows' first n_blocks blocks. A block has 32 values here, whatever ggml's blocks have.

// LEAST: m is -LEAST * d, or kStored. Codes of CodeRange::i8 need kUnsigned if the instructions take unsigned codes.
constexpr int kStored = 0, kUnsigned = 128, kByBlock = -1;

template <CodeRange RANGE, bool OF_256, int WIDTH = 32, int PARTNER = 0>
struct Weights {
    static constexpr CodeRange kRange = RANGE;
    static constexpr bool kOf256      = OF_256;
    static constexpr int kWidth       = WIDTH;                // of a block
    static constexpr int kPartner     = PARTNER;              // block b + PARTNER has its codes in the same bytes; 0: no block has
    static constexpr int kAtOnce      = PARTNER > 0 ? 2 : 1;  // blocks whose codes are read together
    static constexpr int kSideBySide  = 1;                    // rows in one of ggml's blocks
    static constexpr int kLess        = kByBlock;             // what makes codes signed, so that m is not needed; 0: it is, or they are

    // The first block of a step.
    static constexpr int block(int step) { return PARTNER == 2 ? step / 2 * 4 + step % 2 : step * kAtOnce; }
};

// Types with a d before the codes of each 32 values, and after it an m if stored.
template <class BLOCK, bool INTERLEAVED, CodeRange RANGE, int LEAST>
struct Of32 : Weights<RANGE, false> {
    using Block = BLOCK;
    static constexpr int kSideBySide = INTERLEAVED ? 8 : 1;
    static constexpr int kLess       = LEAST == kUnsigned ? 0 : LEAST;
    [[gnu::always_inline]] static Simd::I bytes(const Rows & rows, int r, int b) {
        return sixteen<INTERLEAVED>(rows, r, static_cast<size_t>(b) * sizeof(Block) + offsetof(Block, codes), 0);
    }
    [[gnu::always_inline]] static CodePair nibbles_of(const Rows & rows, int r, int b) { return nibbles(bytes(rows, r, b)); }
    static __m256 eight_factors(const Block & block) { return floats(reinterpret_cast<const uint16_t *>(&block)); }
    static void factors(const EightRows & rows, int n_blocks, Panel & to, int column) {
        for (int b = 0; b < n_blocks; ++b) {
            const auto [d, m] = INTERLEAVED ? Factors{eight_factors(rows.block<Block>(0, b)), {}} : rows.halves<Block>(b);
            Factors{d, LEAST == kStored ? m : times(d, -LEAST)}.store(to, b, column);
        }
    }
};

// Those that ggml may interleave also have unpacked(), the codes of bytes, and eight_factors(), d of a block of eight rows.
template <bool INTERLEAVED>
struct Q4_0 : Of32<std::conditional_t<INTERLEAVED, EightQ4_0, BlockQ4_0>, INTERLEAVED, CodeRange::u4, 8> {
    [[gnu::always_inline]] static CodePair unpacked(Simd::I bytes) { return nibbles(INTERLEAVED ? Simd::ixor(bytes, bytes_of(0x88)) : bytes); }
    [[gnu::always_inline]] static CodePair codes(const Rows & rows, int r, int b) { return unpacked(Q4_0::bytes(rows, r, b)); }
};

struct Q4_1 : Of32<BlockQ4_1, false, CodeRange::u4, kStored> {
    [[gnu::always_inline]] static CodePair codes(const Rows & rows, int r, int b) { return nibbles_of(rows, r, b); }
};

template <class BLOCK, int LEAST>
struct Q5 : Of32<BLOCK, false, CodeRange::u5, LEAST> {
    [[gnu::always_inline]] static CodePair codes(const Rows & rows, int r, int b) {
        const Simd::I bits = Simd::lanes16([&](int group) __attribute__((always_inline)) {  // those of 32 codes, in each byte's place
            return _mm_set1_epi32(four_bytes(rows.at(r + 4 * group) + static_cast<size_t>(b) * sizeof(BLOCK) + offsetof(BLOCK, high)));
        });
        alignas(16) static const uint8_t bytes[2][16] = {{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}, {2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3}};
        alignas(16) static const uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
        const auto upper = [&](int half) __attribute__((always_inline)) {
            return Simd::min_bytes(Simd::iand(Simd::shuffle_bytes(bits, Simd::dup16(bytes[half])), Simd::dup16(bit)), bytes_of(1));
        };
        return joined(Q5::nibbles_of(rows, r, b), {upper(0), upper(1)});
    }
};
using Q5_0 = Q5<BlockQ5_0, 16>;
using Q5_1 = Q5<BlockQ5_1, kStored>;

struct Q8_0 : Of32<BlockQ8_0, false, CodeRange::i8, kUnsigned> {
    [[gnu::always_inline]] static CodePair codes(const Rows & rows, int r, int b) {
        const size_t at = static_cast<size_t>(b) * sizeof(Block) + offsetof(Block, codes);
        return {sixteen<false>(rows, r, at, 0), sixteen<false>(rows, r, at, 16)};
    }
};

template <bool INTERLEAVED>
struct IQ4_NL : Of32<std::conditional_t<INTERLEAVED, EightIQ4_NL, BlockIQ4_NL>, INTERLEAVED, CodeRange::i8, kUnsigned> {
    [[gnu::always_inline]] static CodePair unpacked(Simd::I bytes) { return looked_up(kIq4Values, nibbles(bytes)); }
    [[gnu::always_inline]] static CodePair codes(const Rows & rows, int r, int b) { return unpacked(IQ4_NL::bytes(rows, r, b)); }
};

template <bool INTERLEAVED>
struct MXFP4 : Weights<CodeRange::u5, false> {
    using Block = std::conditional_t<INTERLEAVED, EightMXFP4, BlockMXFP4>;
    static constexpr int kSideBySide = INTERLEAVED ? 8 : 1;
    static constexpr int kLess       = kMxfp4Least;
    [[gnu::always_inline]] static CodePair unpacked(Simd::I bytes) {
        alignas(16) static const int8_t values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};  // kMxfp4Values, more by kMxfp4Least
        return looked_up(values, nibbles(bytes));
    }
    [[gnu::always_inline]] static CodePair codes(const Rows & rows, int r, int b) {
        return unpacked(sixteen<INTERLEAVED>(rows, r, static_cast<size_t>(b) * sizeof(Block) + offsetof(Block, codes), 0));
    }
    static __m128i exponents(const EightRows & rows, int b) {  // bytes
        int64_t found = 0;
        for (int r = 0; r < 8; ++r) {
            found |= static_cast<int64_t>(*reinterpret_cast<const uint8_t *>(&rows.block<Block>(r, b))) << 8 * r;
        }
        return _mm_cvtsi64_si128(found);
    }
    static __m256 powers(__m128i exponents) {
        const __m256i e = _mm256_cvtepu8_epi32(exponents);  // 2^(e - 128); the first two are subnormal
        const __m256i one = _mm256_set1_epi32(1), normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
        const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
        return _mm256_castsi256_ps(_mm256_blendv_epi8(small, normal, _mm256_cmpgt_epi32(e, one)));
    }
    static __m256 eight_factors(const Block & block) { return powers(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(&block))); }
    static void factors(const EightRows & rows, int n_blocks, Panel & to, int column) {
        for (int b = 0; b < n_blocks; ++b) {
            const __m256 d = INTERLEAVED ? eight_factors(rows.block<Block>(0, b)) : powers(exponents(rows, b));
            Factors{d, times(d, -kMxfp4Least)}.store(to, b, column);
        }
    }
};

// Stores d and m of eight rows' eight blocks, given one row per vector.
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
[[gnu::always_inline]] inline CodePair thirty_two(const Rows & rows, int r, size_t codes, size_t byte) {
    return {sixteen<INTERLEAVED>(rows, r, codes, byte), sixteen<INTERLEAVED>(rows, r, codes, byte + 16)};
}

// The bits of each byte from bit `by` on, under `mask`.
inline CodePair bits_of(CodePair bytes, int by, uint8_t mask) {
    return {Simd::iand(Simd::right_by(bytes.low, by), bytes_of(mask)), Simd::iand(Simd::right_by(bytes.high, by), bytes_of(mask))};
}

template <bool INTERLEAVED>
struct Q4_K : Weights<CodeRange::u4, true, 32, 1> {
    using Block = std::conditional_t<INTERLEAVED, EightQ4_K, BlockQ4_K>;
    static constexpr int kSideBySide = INTERLEAVED ? 8 : 1;
    [[gnu::always_inline]] static CodeCouple codes(const Rows & rows, int r, int b) {
        return nibbles(thirty_two<INTERLEAVED>(rows, r, offsetof(Block, codes), static_cast<size_t>(16 * b)));
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

struct Q5_K : Weights<CodeRange::u5, true, 32, 1> {
    using Block = BlockQ5_K;
    [[gnu::always_inline]] static CodeCouple codes(const Rows & rows, int r, int b) {
        const CodeCouple low = nibbles(thirty_two<false>(rows, r, offsetof(Block, codes), static_cast<size_t>(16 * b)));
        const CodePair bits  = thirty_two<false>(rows, r, offsetof(Block, high), 0);
        return {{joined(low.of[0], bits_of(bits, b, 1)), joined(low.of[1], bits_of(bits, b + 1, 1))}};
    }
    static void factors(const EightRows & rows, int, Panel & to, int column) { factors_of_k<Block>(rows, to, column); }
};

struct Q6_K : Weights<CodeRange::u6, true, 16, 2> {
    using Block = BlockQ6_K;
    [[gnu::always_inline]] static CodeCouple codes(const Rows & rows, int r, int b) {
        const int half = b / 4, quarter = b % 4;  // the latter 0 or 1
        const CodeCouple low = nibbles(thirty_two<false>(rows, r, offsetof(Block, low), static_cast<size_t>(64 * half + 32 * quarter)));
        const CodePair bits  = thirty_two<false>(rows, r, offsetof(Block, high), static_cast<size_t>(32 * half));
        return {{joined(low.of[0], bits_of(bits, 2 * quarter, 3)), joined(low.of[1], bits_of(bits, 2 * quarter + 4, 3))}};
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
    static constexpr int kLess = 0;
    [[gnu::always_inline]] static CodePair codes(const Rows & rows, int r, int b) {
        return looked_up(kIq4Values, nibbles(sixteen<false>(rows, r, offsetof(Block, codes), static_cast<size_t>(16 * b))));
    }
    static void factors(const EightRows & rows, int, Panel & to, int column) {
        __m256 d[8], m[8];
        for (int r = 0; r < 8; ++r) {
            const Block & block = rows.block<Block>(r, 0);
            int32_t low;
            std::memcpy(&low, block.low, sizeof low);
            const __m256i four = _mm256_srlv_epi32(_mm256_set1_epi32(low), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
            const __m256i two  = _mm256_srlv_epi32(_mm256_set1_epi32(block.high), _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
            const __m256i scales = _mm256_or_si256(_mm256_and_si256(four, _mm256_set1_epi32(15)), _mm256_slli_epi32(_mm256_and_si256(two, _mm256_set1_epi32(3)), 4));
            d[r] = times(_mm256_cvtepi32_ps(_mm256_sub_epi32(scales, _mm256_set1_epi32(32))), _cvtsh_ss(block.d));
            m[r] = times(d[r], -kUnsigned);
        }
        store_turned(d, m, to, 0, column);
    }
};

inline CodePair flipped_signs(CodePair codes) { return {Simd::ixor(codes.low, bytes_of(0x80)), Simd::ixor(codes.high, bytes_of(0x80))}; }

// Calls with(block, codes) for each block of a step.
template <class Type, bool FLIP, class With>
[[gnu::always_inline]] inline void each_block(const Rows & rows, int r, int step, With with) {
    const int b      = Type::block(step);
    const auto found = Type::codes(rows, r, b);
#pragma GCC unroll 2
    for (int i = 0; i < Type::kAtOnce; ++i) {
        with(b + i * Type::kPartner, FLIP ? flipped_signs(part(found, i)) : part(found, i));
    }
}

template <class Type>
void factors(const Rows & rows, int n_blocks, Panel & to) {
    Type::factors({rows, 0}, n_blocks, to, 0);
    Type::factors({rows, 8}, n_blocks, to, 8);
}

// Fills n_blocks blocks. FLIP: signed codes become unsigned.
template <class Type, bool FLIP>
void unpack(const Rows & rows, int n_blocks, Panel & to) {
    for (int step = 0; step < n_blocks / Type::kAtOnce; ++step) {
        for (int column = 0; column < kProductRows; column += Simd::kLanes) {
            Simd::I low[Type::kAtOnce][4], high[Type::kAtOnce][4];
#pragma GCC unroll 4
            for (int v = 0; v < 4; ++v) {
                int i = 0;
                each_block<Type, FLIP>(rows, column + v, step, [&](int, CodePair codes) __attribute__((always_inline)) {
                    low[i][v] = codes.low;
                    high[i++][v] = codes.high;
                });
            }
#pragma GCC unroll 2
            for (int i = 0; i < Type::kAtOnce; ++i) {
                const int b = Type::block(step) + i * Type::kPartner;
                Simd::turn4(low[i]);
                Simd::turn4(high[i]);
#pragma GCC unroll 4
                for (int v = 0; v < 4; ++v) {
                    Simd::istore(to.codes[8 * b + v][column], low[i][v]);
                    Simd::istore(to.codes[8 * b + 4 + v][column], high[i][v]);
                }
            }
        }
    }
    factors<Type>(rows, n_blocks, to);
}

}  // namespace
}  // namespace edgekv
