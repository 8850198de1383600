// Sixteen rows side by side, as ggml lays them out for tiles (AMX): their codes as vectors of a quad of each row. Over AVX-512 with VNNI.
#pragma once

#include <immintrin.h>

#include "kernels/matmul/products_tiles.h"

namespace edgekv {
namespace {

inline __m512i bytes_to_lanes(const uint8_t * bytes) { return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(bytes))); }
inline __m512i bytes_to_lanes(const int8_t * bytes) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(bytes))); }

// The codes of 32 values, which are a step. Each type's quads() gives those of step b of a block.
struct Quads {
    __m512i codes[8];
};
inline Quads of_nibbles(const uint8_t (*codes)[16][4]) {
    Quads quads;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const __m512i bytes = Simd::iload(codes[i]);
        quads.codes[2 * i]     = low_nibbles(bytes);
        quads.codes[2 * i + 1] = high_nibbles(bytes);
    }
    return quads;
}

// kSigned: codes are i8. A value is d * (code - kLeast), and m more if kStored, or less by dmin * min if kUnder.
template <class BLOCK, int VALUES, bool SIGNED, int LEAST>
struct Sixteen {
    using Block = BLOCK;
    static constexpr int kValues  = VALUES;  // of a block
    static constexpr int kWidth   = 32;      // values with one factor
    static constexpr int kLeast   = LEAST;
    static constexpr bool kSigned = SIGNED, kStored = false, kUnder = false;
    // of step b's values, if they are floats
    static __m512 factor(const Block & block, int) { return from_halves(block.d); }
};

struct Of16Q4_0 : Sixteen<SixteenQ4_0, 32, false, 8> {
    static Quads quads(const Block & block, int) { return of_nibbles(block.codes); }
};
struct Of16Q4_1 : Sixteen<SixteenQ4_1, 32, false, 0> {
    static constexpr bool kStored = true;
    static Quads quads(const Block & block, int) { return of_nibbles(block.codes); }
};
struct Of16Q8_0 : Sixteen<SixteenQ8_0, 32, true, 0> {
    static Quads quads(const Block & block, int) {
        Quads quads;
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            quads.codes[i] = Simd::iload(block.codes[i]);
        }
        return quads;
    }
};
struct Of16Q4_K : Sixteen<SixteenQ4_K, 256, false, 0> {
    static constexpr bool kUnder = true;
    static Quads quads(const Block & block, int b) { return of_nibbles(block.codes + 4 * b); }
};
struct Of16Q5_K : Sixteen<SixteenQ5_K, 256, false, 0> {
    static constexpr bool kUnder = true;
    static Quads quads(const Block & block, int b) {
        Quads quads = of_nibbles(block.codes + 4 * b);
        const __m512i high = Simd::iload(block.high[b]), bit = _mm512_set1_epi8(16);
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            const __m512i moved = i < 4 ? _mm512_slli_epi16(high, static_cast<unsigned>(4 - i)) : _mm512_srli_epi16(high, static_cast<unsigned>(i - 4));
            quads.codes[i] = _mm512_or_si512(quads.codes[i], _mm512_and_si512(moved, bit));
        }
        return quads;
    }
};
struct Of16Q6_K : Sixteen<SixteenQ6_K, 256, false, 32> {
    static constexpr int kWidth = 16;
    static Quads quads(const Block & block, int b) {
        Quads quads = of_nibbles(block.codes + 4 * b);
        const __m512i bits = _mm512_set1_epi8(0x30);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const __m512i high = Simd::iload(block.high[2 * b + half]);
            __m512i * to = quads.codes + 4 * half;
            to[0] = _mm512_or_si512(to[0], _mm512_and_si512(_mm512_slli_epi16(high, 4), bits));
            to[1] = _mm512_or_si512(to[1], _mm512_and_si512(_mm512_slli_epi16(high, 2), bits));
            to[2] = _mm512_or_si512(to[2], _mm512_and_si512(high, bits));
            to[3] = _mm512_or_si512(to[3], _mm512_and_si512(_mm512_srli_epi16(high, 2), bits));
        }
        return quads;
    }
};
struct Of16IQ4_XS : Sixteen<SixteenIQ4_XS, 256, true, 0> {
    static __m512 factor(const Block & block, int b) {
        return _mm512_mul_ps(from_halves(block.d), _mm512_cvtepi32_ps(bytes_to_lanes(block.scales[b])));
    }
    static Quads quads(const Block & block, int b) {
        Quads quads = of_nibbles(block.codes + 4 * b);
        const __m512i values = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(kIq4Values)));
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            quads.codes[i] = _mm512_shuffle_epi8(values, quads.codes[i]);
        }
        return quads;
    }
};

// Whether 256 values have integer factors, so that they become one float.
template <class Type>
constexpr bool kPieced = Type::kUnder || Type::kWidth == 16;

// ---- for tiles

// Fills n steps of 32 values.
template <class Type>
void fill(const typename Type::Block * blocks, int n, BlockPanel & to) {
    constexpr int steps = Type::kValues / kProductBlock;
    for (int b = 0; b < n; ++b) {
        const auto & block = blocks[b / steps];
        const Quads quads  = Type::quads(block, b % steps);
        for (int i = 0; i < 8; ++i) {
            to.set(b, i, _mm512_sub_epi8(quads.codes[i], _mm512_set1_epi8(Type::kLeast)));
        }
        _mm512_store_ps(to.d[b], Type::factor(block, b % steps));
        if constexpr (Type::kStored) {
            _mm512_store_ps(to.m[b], from_halves(block.m));
        }
    }
}

// Of each row the min of 32 values.
template <class Block>
inline __m512i mins_of(const Block & block, int b) {
    const __m512i pairs = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(block.mins[b / 2])));
    return _mm512_and_si512(_mm512_srli_epi32(pairs, static_cast<unsigned>(8 * (b % 2))), _mm512_set1_epi32(255));
}

// Q4_K and Q5_K: 7 times a code fits a byte without a sign.
template <class Type>
void fill(const typename Type::Block & block, PiecePanel & to) {
    const __m512i seven = _mm512_set1_epi16(7);
    for (int b = 0; b < kChunkBlocks; ++b) {
        const Quads quads    = Type::quads(block, b);
        const __m512i scales = in_both_halves(bytes_to_lanes(block.scales[b]));
        const __m512i low = _mm512_and_si512(scales, seven), high = _mm512_srli_epi16(scales, 3);
        const __m512i min = _mm512_mullo_epi32(mins_of(block, b), _mm512_set1_epi32(0x01010101));
        for (int i = 0; i < 8; ++i) {
            to.set(0, 8 * b + i, times_words<false>(quads.codes[i], low));
            to.set(1, 8 * b + i, times_words<false>(quads.codes[i], high));
            to.set(2, 8 * b + i, min);
        }
    }
    _mm512_store_ps(to.d, from_halves(block.d));
    _mm512_store_ps(to.m, _mm512_sub_ps(_mm512_setzero_ps(), from_halves(block.dmin)));
}

// A scale is a sum of digits times 1, 8 and 64. Codes are -32 to 31: digits of -3 to 4 keep their products in a byte.
template <>
void fill<Of16Q6_K>(const SixteenQ6_K & block, PiecePanel & to) {
    const __m512i three = _mm512_set1_epi32(3), seven = _mm512_set1_epi32(7);
    for (int b = 0; b < kChunkBlocks; ++b) {
        const Quads quads = Of16Q6_K::quads(block, b);
        for (int half = 0; half < 2; ++half) {
            __m512i rest = bytes_to_lanes(block.scales[2 * b + half]);
            for (int piece = 0; piece < kPieces; ++piece) {
                const __m512i digit = _mm512_sub_epi32(_mm512_and_si512(_mm512_add_epi32(rest, three), seven), three), by = in_both_halves(digit);
                rest = _mm512_srai_epi32(_mm512_sub_epi32(rest, digit), 3);
                for (int i = 4 * half; i < 4 * half + 4; ++i) {
                    to.set(piece, 8 * b + i, times_words<true>(_mm512_sub_epi8(quads.codes[i], _mm512_set1_epi8(Of16Q6_K::kLeast)), by));
                }
            }
        }
    }
    _mm512_store_ps(to.d, from_halves(block.d));
}

// ---- a few tokens

// The products of N quads, each code less by kLeast, with a token's codes, whose sum is `total`. Instructions take unsigned codes of weights: signed ones
// become larger by 128 first. So the integers, and all that follows, equal those of tiles.
template <class Type, int N>
[[gnu::always_inline]] inline __m512i dots_of_quads(const __m512i * quads, const int8_t * codes, float total) {
    constexpr int less = Type::kSigned ? 128 : Type::kLeast;
    __m512i sum = less > 0 ? _mm512_set1_epi32(-less * static_cast<int>(total)) : _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
        sum = _mm512_dpbusd_epi32(sum, Type::kSigned ? _mm512_xor_si512(quads[i], _mm512_set1_epi8(-128)) : quads[i], Simd::idup4(reinterpret_cast<const char *>(codes) + 4 * i));
    }
    return sum;
}

// Adds step b of a token's chunk; `factor` is the weights'.
template <class Type>
[[gnu::always_inline]] inline __m512 plus_sixteen(const typename Type::Block & block, const Quads & quads, __m512 factor, const TokenChunk & x, int b, __m512 sum) {
    if constexpr (Type::kStored) {
        sum = _mm512_fmadd_ps(from_halves(block.m), _mm512_set1_ps(x.sums[b]), sum);
    }
    const __m512i found = dots_of_quads<Type, 8>(quads.codes, x.codes + b * kProductBlock, x.halves[2 * b] + x.halves[2 * b + 1]);
    return _mm512_fmadd_ps(_mm512_mul_ps(factor, _mm512_set1_ps(x.d[b])), _mm512_cvtepi32_ps(found), sum);
}

// Adds 32 values of the K types to `whole`, and what is subtracted, which has another factor, to `under`.
template <class Type>
[[gnu::always_inline]] inline void plus_scaled(const typename Type::Block & block, const Quads & quads, const TokenChunk & x, int b, __m512i & whole, __m512i & under) {
    const auto plus = [&](__m512i found, const auto & scales) __attribute__((always_inline)) {
        whole = _mm512_add_epi32(whole, _mm512_mullo_epi32(found, bytes_to_lanes(scales)));
    };
    const int8_t * codes = x.codes + b * kProductBlock;
    if constexpr (Type::kWidth == 16) {
        plus(dots_of_quads<Type, 4>(quads.codes, codes, x.halves[2 * b]), block.scales[2 * b]);
        plus(dots_of_quads<Type, 4>(quads.codes + 4, codes + 16, x.halves[2 * b + 1]), block.scales[2 * b + 1]);
    } else {
        plus(dots_of_quads<Type, 8>(quads.codes, codes, x.sums[b]), block.scales[b]);
    }
    if constexpr (Type::kUnder) {
        under = _mm512_add_epi32(under, _mm512_mullo_epi32(mins_of(block, b), _mm512_set1_epi32(static_cast<int>(x.sums[b]))));
    }
}

// Sixteen rows from `row` on with up to NT tokens. With fewer, the last one fills the missing places.
template <class Type, int NT>
void multiply_side_by_side(const ProductProblem & p, int row, int end) {
    using Block = typename Type::Block;
    constexpr bool of_k  = kPieced<Type>;
    constexpr int values = Type::kValues, n_steps = values / kProductBlock;
    constexpr size_t ahead = 4096;  // bytes: what follows in memory is what is read next
    const int n_blocks = p.n_values / values;
    const auto * blocks = reinterpret_cast<const Block *>(p.weights) + static_cast<size_t>(row / kProductRows) * static_cast<size_t>(n_blocks);
    __m512 sums[NT];
    for (int t = 0; t < NT; ++t) {
        sums[t] = _mm512_setzero_ps();
    }
    for (int i = 0; i < n_blocks; ++i) {
        const Block & block = blocks[i];
        const TokenChunk * x[NT];
        __m512i whole[NT], under[NT];
        for (int t = 0; t < NT; ++t) {
            x[t] = p.tokens + static_cast<size_t>(i * values / kProductChunk) * p.token_stride + std::min(t, p.n_tokens - 1);
            whole[t] = under[t] = _mm512_setzero_si512();
        }
        for (size_t byte = 0; byte < sizeof(Block); byte += 64) {
            _mm_prefetch(reinterpret_cast<const char *>(&block) + ahead + byte, _MM_HINT_T0);
        }
        for (int step = 0; step < n_steps; ++step) {
            const Quads quads   = Type::quads(block, step);
            [[maybe_unused]] const __m512 factor = Type::factor(block, step);
#pragma GCC unroll 8
            for (int t = 0; t < NT; ++t) {
                if constexpr (of_k) {
                    plus_scaled<Type>(block, quads, *x[t], step, whole[t], under[t]);
                } else {
                    sums[t] = plus_sixteen<Type>(block, quads, factor, *x[t], (i * n_steps + step) % kChunkBlocks, sums[t]);
                }
            }
        }
        if constexpr (of_k) {
            for (int t = 0; t < NT; ++t) {
                __m512 value = _mm512_mul_ps(from_halves(block.d), _mm512_cvtepi32_ps(whole[t]));
                if constexpr (Type::kUnder) {
                    value = _mm512_fnmadd_ps(from_halves(block.dmin), _mm512_cvtepi32_ps(under[t]), value);
                }
                sums[t] = _mm512_fmadd_ps(_mm512_set1_ps(x[t]->d[0]), value, sums[t]);
            }
        }
    }
    for (int t = 0; t < p.n_tokens; ++t) {
        _mm512_mask_storeu_ps(p.out_row(t) + row, static_cast<__mmask16>(end - row >= kProductRows ? 0xffff : (1 << (end - row)) - 1), sums[t]);
    }
}

constexpr int kTokensBeside = 8;  // more meet tiles

template <class Type>
void multiply_few_side_by_side(const ProductProblem & p, int first, int end) {
    for (int row = first; row < end; row += kProductRows) {
        if (p.n_tokens == 1) {
            multiply_side_by_side<Type, 1>(p, row, end);
        } else if (p.n_tokens == 2) {
            multiply_side_by_side<Type, 2>(p, row, end);
        } else if (p.n_tokens <= 4) {
            multiply_side_by_side<Type, 4>(p, row, end);
        } else {
            multiply_side_by_side<Type, kTokensBeside>(p, row, end);
        }
    }
}

}  // namespace
}  // namespace edgekv
