// Blocks of quantised weights as ggml lays them out, and eight rows' blocks side by side as it repacks them. Factors are f16.
#pragma once

#include <cstdint>

namespace edgekv {

struct BlockQ4_0 {
    uint16_t d;
    uint8_t codes[16];  // low nibbles: the first half; a value is d * (code - 8)
};
struct BlockQ4_1 {
    uint16_t d, m;      // a value is d * code + m
    uint8_t codes[16];
};
struct BlockQ5_0 {
    uint16_t d;
    uint8_t high[4];    // a bit of each code
    uint8_t codes[16];  // a value is d * (code - 16)
};
struct BlockQ5_1 {
    uint16_t d, m;
    uint8_t high[4];
    uint8_t codes[16];
};
struct BlockQ8_0 {
    uint16_t d;
    int8_t codes[32];
};
struct BlockQ4_K {
    uint16_t d, dmin;     // of 32 values: d * scale * code - dmin * min
    uint8_t scales[12];   // eight scales and eight mins of six bits
    uint8_t codes[128];   // of each 32 bytes low nibbles come first
};
struct BlockQ5_K {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t high[32];     // bit b belongs to the b-th 32 values
    uint8_t codes[128];
};
struct BlockQ6_K {
    uint8_t low[128];
    uint8_t high[64];
    int8_t scales[16];    // of 16 values: d * scale * (code - 32)
    uint16_t d;
};
struct BlockIQ4_NL {
    uint16_t d;
    uint8_t codes[16];    // a value is d * kIq4Values[code]
};
struct BlockIQ4_XS {
    uint16_t d, high;     // of 32 values: d * (scale - 32) * kIq4Values[code]; two bits of each scale
    uint8_t low[4];       // four bits of each
    uint8_t codes[128];
};
struct BlockMXFP4 {
    uint8_t exponent;     // a value is 2^(exponent - 128) * kMxfp4Values[code]
    uint8_t codes[16];
};

// Eight rows: each number of a block becomes eight, and codes come in pieces of eight bytes, one for each row. The high bit of each q4_0 code is
// flipped.
struct EightQ4_0 {
    uint16_t d[8];
    uint8_t codes[128];
};
struct EightQ4_K {
    uint16_t d[8], dmin[8];
    uint8_t scales[8][12];  // of each 32 values those of eight rows
    uint8_t codes[1024];
};
struct EightIQ4_NL {
    uint16_t d[8];
    uint8_t codes[128];
};
struct EightMXFP4 {
    uint8_t exponent[8];
    uint8_t codes[128];
};

// Sixteen rows, as ggml lays them out for the tiles of AMX: codes of four bits are quads of two times four values of a row, for each row; the first four are
// the low nibbles. Each number of a block becomes sixteen.
struct SixteenQ4_0 {
    uint8_t codes[4][16][4];
    uint16_t d[16];
};
struct SixteenQ4_1 {
    uint8_t codes[4][16][4];
    uint16_t d[16], m[16];
};
struct SixteenQ8_0 {
    int8_t codes[8][16][4];
    uint16_t d[16];
    int32_t sums[16];          // of the codes, times 128
};
struct SixteenQ4_K {
    uint8_t codes[32][16][4];
    uint8_t scales[8][16];
    uint8_t mins[4][16][2];    // of two times 32 values
    uint16_t d[16], dmin[16];
};
struct SixteenQ5_K {
    uint8_t codes[32][16][4];
    uint8_t high[8][16][4];    // of each 32 values; bit b belongs to the b-th four
    uint8_t scales[8][16];
    uint8_t mins[4][16][2];
    uint16_t d[16], dmin[16];
};
struct SixteenQ6_K {
    uint8_t codes[32][16][4];
    uint8_t high[16][16][4];   // of each 16 values; two bits from bit 2 b on belong to the b-th four
    int8_t scales[16][16];
    uint16_t d[16];
};
struct SixteenIQ4_XS {
    uint8_t codes[32][16][4];
    int8_t scales[8][16];      // less by 32 than a block's
    uint16_t d[16];
};

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34 &&
              sizeof(BlockQ4_K) == 144 && sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210 && sizeof(BlockIQ4_NL) == 18 &&
              sizeof(BlockIQ4_XS) == 136 && sizeof(BlockMXFP4) == 17, "blocks as ggml lays them out");
static_assert(sizeof(EightQ4_0) == 8 * sizeof(BlockQ4_0) && sizeof(EightQ4_K) == 8 * sizeof(BlockQ4_K) &&
              sizeof(EightIQ4_NL) == 8 * sizeof(BlockIQ4_NL) && sizeof(EightMXFP4) == 8 * sizeof(BlockMXFP4), "eight rows' blocks");
static_assert(sizeof(SixteenQ4_0) == 288 && sizeof(SixteenQ4_1) == 320 && sizeof(SixteenQ8_0) == 608 && sizeof(SixteenQ4_K) == 2368 &&
              sizeof(SixteenQ5_K) == 2880 && sizeof(SixteenQ6_K) == 3360 && sizeof(SixteenIQ4_XS) == 2208, "sixteen rows' blocks");

constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr int kMxfp4Least = 12;  // below the smallest none is

}  // namespace edgekv
