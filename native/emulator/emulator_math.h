// CUDA's arithmetic and bit intrinsics for the host compiler. Part of emulator.h. Compile with -ffp-contract=off to keep a product
// and a sum two operations, as the _rn intrinsics promise.
#pragma once

#include <math.h>

#include <cstdint>

#include "emulator/emulator_half.h"

inline int   __float_as_int(float f) { return edgekv::gpu::emulator::bit_cast<int>(f); }
inline unsigned __float_as_uint(float f) { return edgekv::gpu::emulator::bit_cast<unsigned>(f); }
inline float __uint_as_float(unsigned u) { return edgekv::gpu::emulator::bit_cast<float>(u); }

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float a) { return expf(a); }
inline float __logf(float a) { return logf(a); }

namespace edgekv::gpu::emulator {
// converts to an integer as a GPU does: clamped, NaN becomes 0
inline int to_int(float rounded) {
    return rounded >= 0x1p31f ? INT32_MAX : rounded < -0x1p31f ? INT32_MIN : rounded == rounded ? static_cast<int>(rounded) : 0;
}
}  // namespace edgekv::gpu::emulator

inline int __float2int_rn(float a) { return edgekv::gpu::emulator::to_int(rintf(a)); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
// selector: four nibbles; 0..7 name a byte of (high, low), bit 3 repeats its sign bit over all eight bits
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
    unsigned out = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned nibble = selector >> 4 * i & 0xfu;
        unsigned byte = static_cast<unsigned>(bytes >> 8 * (nibble & 7u)) & 0xffu;
        if (nibble & 8u) {
            byte = byte & 0x80u ? 0xffu : 0u;
        }
        out |= byte << 8 * i;
    }
    return out;
}

inline int __dp4a(int a, int b, int sum) {
    unsigned wrapped = static_cast<unsigned>(sum);
    for (int i = 0; i < 4; ++i) {
        wrapped += static_cast<unsigned>(static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i));
    }
    return static_cast<int>(wrapped);
}
template <class T> inline T __ldg(const T * p) { return *p; }

// CUDA's overloads but those for doubles: a call that is ambiguous for nvcc is ambiguous here
#define EDGEKV_MIN_MAX(result, a_type, b_type)                                                           \
    inline result min(a_type a, b_type b) {                                                              \
        return static_cast<result>(a) < static_cast<result>(b) ? static_cast<result>(a) : static_cast<result>(b); \
    }                                                                                                    \
    inline result max(a_type a, b_type b) {                                                              \
        return static_cast<result>(a) > static_cast<result>(b) ? static_cast<result>(a) : static_cast<result>(b); \
    }
#define EDGEKV_MIN_MAX_SIGNS(type)                  \
    EDGEKV_MIN_MAX(type, type, type)                \
    EDGEKV_MIN_MAX(unsigned type, unsigned type, unsigned type) \
    EDGEKV_MIN_MAX(unsigned type, type, unsigned type)          \
    EDGEKV_MIN_MAX(unsigned type, unsigned type, type)
EDGEKV_MIN_MAX_SIGNS(int)
EDGEKV_MIN_MAX_SIGNS(long)
EDGEKV_MIN_MAX_SIGNS(long long)
#undef EDGEKV_MIN_MAX_SIGNS
#undef EDGEKV_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
