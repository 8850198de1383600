// Random numbers and cell rows in the cache's formats, for the checker and the benchmark.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/layout.h"

namespace cases {

struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15u + 1) {}
    uint64_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    }
    float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }                          // [0, 1)
    float normal() { return (uniform() + uniform() + uniform() + uniform() - 2.0f) * 1.7320508f; }  // roughly
};

// Round to nearest; enough for the finite values and -inf used here.
inline uint16_t to_half(float x) {
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const float a = std::fabs(x);
    if (std::isinf(a)) {
        return sign | 0x7c00;
    }
    int exponent;
    std::frexp(a, &exponent);
    if (a == 0.0f || exponent < -13) {
        return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::lrint(std::ldexp(a, 24))));
    }
    return static_cast<uint16_t>(sign + ((exponent + 13) << 10) + static_cast<int>(std::lrint(std::ldexp(a, 11 - exponent))));
}

inline size_t row_bytes(edgekv::CellType type, int head_dim) {
    return static_cast<size_t>(type == edgekv::CellType::f16 ? head_dim * 2 : head_dim / 32 * 34);
}

inline void store_row(edgekv::CellType type, const std::vector<float> & x, char * row) {
    if (type == edgekv::CellType::f16) {
        for (size_t i = 0; i < x.size(); ++i) {
            const uint16_t h = to_half(x[i]);
            std::memcpy(row + 2 * i, &h, 2);
        }
        return;
    }
    for (size_t b = 0; b < x.size() / 32; ++b) {
        float amax = 0.0f;
        for (size_t i = 32 * b; i < 32 * b + 32; ++i) {
            amax = std::fmax(amax, std::fabs(x[i]));
        }
        const uint16_t scale = to_half(amax / 127.0f);
        std::memcpy(row + 34 * b, &scale, 2);
        for (size_t i = 0; i < 32; ++i) {
            row[34 * b + 2 + i] = static_cast<char>(static_cast<int8_t>(std::lrint(x[32 * b + i] * 127.0f / amax)));
        }
    }
}

// Channel i of a row, as it is stored.
inline double element(edgekv::CellType type, const char * row, int i) {
    uint16_t half;
    std::memcpy(&half, type == edgekv::CellType::f16 ? row + 2 * i : row + i / 32 * 34, 2);
    const int exponent = half >> 10 & 31;
    const double x = exponent == 0 ? std::ldexp(half & 1023, -24) : std::ldexp((half & 1023) + 1024, exponent - 25);
    const double value = half & 0x8000 ? -x : x;
    return type == edgekv::CellType::f16 ? value : value * static_cast<int8_t>(row[i / 32 * 34 + 2 + i % 32]);
}

}  // namespace cases
