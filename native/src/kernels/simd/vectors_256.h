// Functions on vectors of eight floats for AVX2 and AVX-512 kernels; compiled separately in each translation unit, like all kernels.
#pragma once

#include <immintrin.h>

namespace edgekv {
namespace {

inline float largest_of(__m256 a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// Lane j of x[i] changes places with lane i of x[j].
inline void transpose_8(__m256 (&x)[8]) {
    __m256 a[8];
    _Pragma("GCC unroll 2") for (int i = 0; i < 8; i += 4) {
        const __m256 ab0 = _mm256_unpacklo_ps(x[i], x[i + 1]), ab1 = _mm256_unpackhi_ps(x[i], x[i + 1]);
        const __m256 cd0 = _mm256_unpacklo_ps(x[i + 2], x[i + 3]), cd1 = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
        a[i] = _mm256_shuffle_ps(ab0, cd0, 0x44);
        a[i + 1] = _mm256_shuffle_ps(ab0, cd0, 0xee);
        a[i + 2] = _mm256_shuffle_ps(ab1, cd1, 0x44);
        a[i + 3] = _mm256_shuffle_ps(ab1, cd1, 0xee);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i) {
        x[i] = _mm256_permute2f128_ps(a[i], a[4 + i], 0x20);
        x[4 + i] = _mm256_permute2f128_ps(a[i], a[4 + i], 0x31);
    }
}

}  // namespace
}  // namespace edgekv
