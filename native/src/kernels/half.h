// Stored values in double precision, by arithmetic on their fields, for the kernels' specifications.
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

// x as the nearest half, ties to even.
inline double round_to_half(double x) {
    if (x == 0 || !std::isfinite(x)) {
        return x;
    }
    const double step = std::ldexp(1.0, std::max(std::ilogb(x), -14) - 10), rounded = std::nearbyint(x / step) * step;
    return std::fabs(rounded) >= 65536 ? std::copysign(INFINITY, x) : rounded;
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
