// The product of quantised weights with several tokens in tiles of bytes, over the Simd of the translation unit that includes this, which has AVX-512.
// A tile has 64 values of sixteen tokens, or of sixteen rows of weights; the product of two is 256 sums of integers. What turns sums into floats costs more
// than the tiles do, so the sums of one group of tokens are turned while the tiles multiply the next.
//
// Types whose factors are floats, one for each 32 values, have sums of 32 values. The scales of the K types are integers: they are multiplied into the codes,
// in pieces of three bits, whose products fit bytes. So 256 values have one sum for each piece, and one for what is subtracted.
#pragma once

#include <cstring>

#include "kernels/matmul/products_walk.h"

namespace edgekv {
namespace {

constexpr int kTileTokens = 16, kTileValues = 64;
constexpr int kTileBlocks = 4;  // of 32 values: their tiles stay in registers while the tokens pass
constexpr int kPieces     = 3;

using TileCodes = uint8_t[kTileValues / 4][kProductRows][4];
using TileSums  = int32_t[kTileTokens][kProductRows];

inline __m512 from_halves(const uint16_t * halves) { return Simd::load_f16(reinterpret_cast<const char *>(halves)); }

// ---- factors for each 32 values

// A block is the first or the second half of its tile, as its number is even or odd. The other half is 0, so that both multiply the same tile of tokens.
struct BlockPanel {
    alignas(64) TileCodes codes[kChunkBlocks];
    alignas(64) float d[kChunkBlocks][kProductRows];
    alignas(64) float m[kChunkBlocks][kProductRows];

    BlockPanel() { std::memset(codes, 0, sizeof codes); }
    void set(int b, int quad, __m512i quads) { _mm512_store_si512(codes[b][8 * (b % 2) + quad], quads); }
};

// Adds N_BLOCKS blocks' sums with a token. Codes without a sign have an m.
template <bool SIGNED, int N_BLOCKS>
[[gnu::always_inline]] inline void add_blocks(const TileSums (&found)[kTileBlocks], const BlockPanel & panel, int b, const TokenChunk & x, int t, float * to) {
    __m512 sum = _mm512_load_ps(to);
#pragma GCC unroll 4
    for (int j = 0; j < N_BLOCKS; ++j) {
        if (!SIGNED) {
            sum = _mm512_fmadd_ps(_mm512_load_ps(panel.m[b + j]), _mm512_set1_ps(x.sums[b + j]), sum);
        }
        const __m512 d = _mm512_mul_ps(_mm512_load_ps(panel.d[b + j]), _mm512_set1_ps(x.d[b + j]));
        sum = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(_mm512_load_si512(found[j][t])), sum);
    }
    _mm512_store_ps(to, sum);
}

// Multiplies the N_BLOCKS blocks from b on, a multiple of kTileBlocks, by all tokens.
template <class Tiles, bool SIGNED, int N_BLOCKS>
void multiply_blocks(const BlockPanel & panel, int b, const TokenChunk * x, int n_tokens, float (*sums)[kProductRows]) {
    alignas(64) TileSums found[2][kTileBlocks];
    Tiles::template load<4>(panel.codes[b], kTileValues);
    Tiles::template load<5>(panel.codes[b + 1], kTileValues);
    Tiles::template load<6>(panel.codes[b + 2], kTileValues);
    Tiles::template load<7>(panel.codes[b + 3], kTileValues);
    const auto add = [&](int group, int first, int end) __attribute__((always_inline)) {
        for (int t = first; t < end; ++t) {
            add_blocks<SIGNED, N_BLOCKS>(found[group / kTileTokens % 2], panel, b, x[group + t], t, sums[group + t]);
        }
    };
    int group = 0;
    for (; group < n_tokens; group += kTileTokens) {
        TileSums (&to)[kTileBlocks] = found[group / kTileTokens % 2];
        const int before  = group - kTileTokens;
        const auto quarter = [&](int i) __attribute__((always_inline)) {
            if (before >= 0) {
                add(before, 4 * i, 4 * i + 4);
            }
        };
        const int8_t * codes = x[group].codes + b * kProductBlock;
        Tiles::template load<3>(codes, sizeof(TokenChunk));
        Tiles::template zero<0>();
        Tiles::template multiply_bytes<0, 3, 4, SIGNED>();
        quarter(0);
        Tiles::template zero<1>();
        Tiles::template multiply_bytes<1, 3, 5, SIGNED>();
        Tiles::template load<3>(codes + kTileValues, sizeof(TokenChunk));
        quarter(1);
        Tiles::template zero<2>();
        Tiles::template multiply_bytes<2, 3, 6, SIGNED>();
        Tiles::template store<0>(to[0], kTileValues);
        quarter(2);
        Tiles::template zero<0>();
        Tiles::template multiply_bytes<0, 3, 7, SIGNED>();
        Tiles::template store<1>(to[1], kTileValues);
        quarter(3);
        Tiles::template store<2>(to[2], kTileValues);
        Tiles::template store<0>(to[3], kTileValues);
    }
    add(group - kTileTokens, 0, n_tokens - group + kTileTokens);
}

template <class Tiles, bool SIGNED>
void multiply_panel(const BlockPanel & panel, int n_blocks, const TokenChunk * x, int n_tokens, float (*sums)[kProductRows]) {
    for (int b = 0; b < n_blocks; b += kTileBlocks) {
        switch (n_blocks - b) {
            case 1: multiply_blocks<Tiles, SIGNED, 1>(panel, b, x, n_tokens, sums); break;
            case 2: multiply_blocks<Tiles, SIGNED, 2>(panel, b, x, n_tokens, sums); break;
            case 3: multiply_blocks<Tiles, SIGNED, 3>(panel, b, x, n_tokens, sums); break;
            default: multiply_blocks<Tiles, SIGNED, kTileBlocks>(panel, b, x, n_tokens, sums);
        }
    }
}

// ---- integer scales

// The codes of 256 values times pieces of their scales: times[i] of the sum of piece i. Or, if UNDER, two pieces and what is subtracted in each value's place.
struct PiecePanel {
    alignas(64) TileCodes codes[kPieces][kProductChunk / kTileValues];
    alignas(64) float d[kProductRows], m[kProductRows];

    void set(int piece, int quad, __m512i quads) { _mm512_store_si512(codes[piece][quad / 16][quad % 16], quads); }
};

// Bytes of each row times a factor of the row, in both halves of its lane.
template <bool SIGNED>
inline __m512i times_words(__m512i bytes, __m512i by) {
    const __m512i low  = _mm512_set1_epi16(0xff);
    const __m512i even = SIGNED ? _mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8) : _mm512_and_si512(bytes, low);
    const __m512i odd  = SIGNED ? _mm512_srai_epi16(bytes, 8) : _mm512_srli_epi16(bytes, 8);
    return _mm512_or_si512(_mm512_and_si512(_mm512_mullo_epi16(even, by), low), _mm512_slli_epi16(_mm512_mullo_epi16(odd, by), 8));
}

inline __m512i in_both_halves(__m512i lanes) {
    return _mm512_or_si512(_mm512_and_si512(lanes, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32(lanes, 16));
}

// Adds the sums of 256 values with a token.
template <bool UNDER>
[[gnu::always_inline]] inline void add_pieces(const TileSums (&found)[kPieces], const PiecePanel & panel, const TokenChunk & x, int t, float * to) {
    const auto sum_of = [&](int piece) __attribute__((always_inline)) { return _mm512_load_si512(found[piece][t]); };
    __m512i whole = _mm512_add_epi32(sum_of(0), _mm512_slli_epi32(sum_of(1), 3));
    if (!UNDER) {
        whole = _mm512_add_epi32(whole, _mm512_slli_epi32(sum_of(2), 6));
    }
    __m512 value = _mm512_mul_ps(_mm512_load_ps(panel.d), _mm512_cvtepi32_ps(whole));
    if (UNDER) {
        value = _mm512_fmadd_ps(_mm512_load_ps(panel.m), _mm512_cvtepi32_ps(sum_of(2)), value);
    }
    _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_set1_ps(x.d[0]), value, _mm512_load_ps(to)));
}

// Adds step K of the tile of tokens, in register TOKENS; calls between(0) and between(1) meanwhile.
template <class Tiles, bool SIGNED, int TOKENS, class Between>
[[gnu::always_inline]] inline void piece_step(const PiecePanel & panel, int k, const int8_t * codes, Between between) {
    Tiles::template load<TOKENS>(codes + k * kTileValues, sizeof(TokenChunk));
    Tiles::template load<5>(panel.codes[0][k], kTileValues);
    Tiles::template multiply_bytes<0, TOKENS, 5, SIGNED>();
    Tiles::template load<6>(panel.codes[1][k], kTileValues);
    Tiles::template multiply_bytes<1, TOKENS, 6, SIGNED>();
    between(2 * k);
    Tiles::template load<7>(panel.codes[2][k], kTileValues);
    Tiles::template multiply_bytes<2, TOKENS, 7, SIGNED>();
    between(2 * k + 1);
}

// UNDER: codes are unsigned.
template <class Tiles, bool UNDER>
void multiply_pieces(const PiecePanel & panel, const TokenChunk * x, int n_tokens, float (*sums)[kProductRows]) {
    alignas(64) TileSums found[2][kPieces];
    const auto add = [&](int group, int first, int end) __attribute__((always_inline)) {
        for (int t = first; t < end; ++t) {
            add_pieces<UNDER>(found[group / kTileTokens % 2], panel, x[group + t], t, sums[group + t]);
        }
    };
    int group = 0;
    for (; group < n_tokens; group += kTileTokens) {
        TileSums (&to)[kPieces] = found[group / kTileTokens % 2];
        const int8_t * codes = x[group].codes;
        const int before = group - kTileTokens;
        const auto eighth = [&](int i) __attribute__((always_inline)) {
            if (before >= 0) {
                add(before, 2 * i, 2 * i + 2);
            }
        };
        Tiles::template zero<0>();
        Tiles::template zero<1>();
        Tiles::template zero<2>();
#pragma GCC unroll 2
        for (int k = 0; k < kProductChunk / kTileValues; k += 2) {
            piece_step<Tiles, !UNDER, 3>(panel, k, codes, eighth);
            piece_step<Tiles, !UNDER, 4>(panel, k + 1, codes, eighth);
        }
        Tiles::template store<0>(to[0], kTileValues);
        Tiles::template store<1>(to[1], kTileValues);
        Tiles::template store<2>(to[2], kTileValues);
    }
    add(group - kTileTokens, 0, n_tokens - group + kTileTokens);
}

}  // namespace
}  // namespace edgekv
