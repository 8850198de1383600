// How values are stored, and what is stored in double precision, by arithmetic on their fields: for the kernels' specifications.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/layout.h"

namespace edgekv {

// A factor of 2^exponent, which is normal.
inline double power_of_two(int exponent) {
    const uint64_t bits = static_cast<uint64_t>(exponent + 1023) << 52;
    double power;
    std::memcpy(&power, &bits, sizeof(power));
    return power;
}

inline double half_to_double(uint16_t h) {
    const int exponent = h >> 10 & 31;
    const double mantissa = h & 1023;
    const double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exponent == 31) {
        return mantissa != 0 ? NAN : sign * INFINITY;
    }
    return sign * (exponent == 0 ? mantissa * 0x1p-24 : (mantissa + 1024) * power_of_two(exponent - 25));
}

// A float as the nearest half; of numbers and infinities.
inline uint16_t to_half(float x) {
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const float a = std::fabs(x);
    if (a >= 65520.0f) {
        return sign | 0x7c00;
    }
    int exponent;
    std::frexp(a, &exponent);
    if (a == 0.0f || exponent < -13) {
        return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::lrint(std::ldexp(a, 24))));
    }
    return static_cast<uint16_t>(sign + ((exponent + 13) << 10) + static_cast<int>(std::lrint(std::ldexp(a, 11 - exponent))));
}

// Stores a row of K or V, as set_rows of ggml-cuda does where divisions are exact.
inline void store_row(CellType type, const float * x, int dim, char * row) {
    for (int i = 0; type == CellType::f16 && i < dim; ++i) {
        const uint16_t half = to_half(x[i]);
        std::memcpy(row + 2 * i, &half, 2);
    }
    const auto flushed = [](float y) { return std::fabs(y) < 0x1p-126f ? std::copysign(0.0f, y) : y; };
    for (int b = 0; in_blocks(type) && b < dim / kQuantBlock; ++b, x += kQuantBlock, row += block_bytes(type)) {
        const bool wide = type == CellType::q8_0;
        const float most = *std::max_element(x, x + kQuantBlock, [](float y, float z) { return std::fabs(y) < std::fabs(z); });  // the first
        const float scale = flushed(wide ? flushed(std::fabs(most)) / 127.0f : flushed(most) / -8.0f), inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
        const uint16_t half = to_half(scale);
        std::memcpy(row, &half, 2);
        const auto four = [&](int i) { return std::min(15, static_cast<int>(std::fma(x[i], inverse, 8.5f))); };
        for (int i = 0; i < (wide ? kQuantBlock : kQuantBlock / 2); ++i) {
            row[2 + i] = static_cast<char>(wide ? static_cast<int8_t>(std::round(x[i] * inverse)) : four(i) | four(i + kQuantBlock / 2) << 4);
        }
    }
}

// Channel i of a row of K or V.
inline double channel(CellType type, const char * row, int i) {
    const char * block = in_blocks(type) ? row + i / kQuantBlock * block_bytes(type) : row + 2 * i;
    uint16_t half;
    std::memcpy(&half, block, 2);
    const auto code = [&] {
        if (type == CellType::q8_0) {
            return static_cast<int>(static_cast<int8_t>(block[2 + i % 32]));
        }
        return (static_cast<uint8_t>(block[2 + i % 16]) >> (i % 32 < 16 ? 0 : 4) & 15) - 8;
    };
    return half_to_double(half) * (in_blocks(type) ? code() : 1);
}

}  // namespace edgekv
