// CUDA's half precision for the host compiler, with IEEE rounding to nearest even. Part of emulator.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "emulator/emulator_types.h"

namespace edgekv::gpu::emulator {

template <class To, class From>
inline To bit_cast(const From & from) {
    static_assert(sizeof(To) == sizeof(From), "the sizes differ");
    To to;
    std::memcpy(&to, &from, sizeof(to));
    return to;
}

inline float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t rest = static_cast<uint32_t>(h & 0x7fffu) << 13;
    if ((h & 0x7c00u) == 0x7c00u) {  // infinity, NaN
        return bit_cast<float>(sign | 0x7f800000u | rest);
    }
    return bit_cast<float>(sign | bit_cast<uint32_t>(bit_cast<float>(rest) * 0x1p112f));  // exact, subnormals too
}

inline uint16_t float_to_half(float f) {
    const uint32_t bits = bit_cast<uint32_t>(f);
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
    const uint32_t rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) {
        return 0x7fff;  // CUDA's one NaN
    }
    if (rest >= 0x477ff000u) {  // from 65520 on
        return sign | 0x7c00u;
    }
    if (rest < 0x38800000u) {  // a subnormal: the addition rounds at the unit of 2^-24
        return sign | static_cast<uint16_t>(bit_cast<uint32_t>(bit_cast<float>(rest) + 0.5f) - 0x3f000000u);
    }
    return sign | static_cast<uint16_t>((rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13);
}

}  // namespace edgekv::gpu::emulator

struct alignas(2) __half {
    unsigned short bits;

    __half() = default;
    __half(float f) : bits(edgekv::gpu::emulator::float_to_half(f)) {}
    operator float() const { return edgekv::gpu::emulator::half_to_float(bits); }
};

inline float __half2float(__half h) { return edgekv::gpu::emulator::half_to_float(h.bits); }
inline __half __float2half_rn(float f) { return __half(f); }
inline __half __ushort_as_half(unsigned short bits) { return edgekv::gpu::emulator::bit_cast<__half>(bits); }
