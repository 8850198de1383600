// Half precision by arithmetic on its fields, for the kernels' specifications.
#pragma once

#include <cmath>
#include <cstdint>

namespace edgekv {

inline double half_to_double(uint16_t h) {
    const int exponent = h >> 10 & 31;
    const double mantissa = h & 1023;
    const double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exponent == 31) {
        return mantissa != 0 ? NAN : sign * INFINITY;
    }
    return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25));
}

}  // namespace edgekv
