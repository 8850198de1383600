// Eight f16 values a stride apart, for the x86 instruction sets; compiled separately in each translation unit, like the whole kernel.
#pragma once

#include <immintrin.h>
#include <stddef.h>

namespace edgekv {
namespace {

inline short half_bits(const char * p) {
    short bits;
    __builtin_memcpy(&bits, p, 2);
    return bits;
}

inline int four_bytes(const char * p) {
    int bytes;
    __builtin_memcpy(&bytes, p, 4);
    return bytes;
}

inline __m128i gather_8_halves(const char * p, size_t stride) {
    __m128i x = _mm_cvtsi32_si128(half_bits(p));
    x = _mm_insert_epi16(x, half_bits(p + stride), 1);
    x = _mm_insert_epi16(x, half_bits(p + 2 * stride), 2);
    x = _mm_insert_epi16(x, half_bits(p + 3 * stride), 3);
    x = _mm_insert_epi16(x, half_bits(p + 4 * stride), 4);
    x = _mm_insert_epi16(x, half_bits(p + 5 * stride), 5);
    x = _mm_insert_epi16(x, half_bits(p + 6 * stride), 6);
    return _mm_insert_epi16(x, half_bits(p + 7 * stride), 7);
}

}  // namespace
}  // namespace edgekv
