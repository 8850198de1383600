// AVX2 + FMA + F16C; AVX-VNNI where the translation unit has it.
#pragma once

#include "kernels/simd/simd_gather.h"
#include "kernels/simd/vectors_256.h"

#include <cstddef>
#include <cstdint>

namespace edgekv {
namespace {

// The comments on the operations are in simd_avx512.h and simd_x86.h.
struct Simd {
    static constexpr int kLanes = 8;
    static constexpr int kQueries = 3;
    static constexpr int kPvVectors = 4;
    static constexpr int kPromptPanels = 2;
    static constexpr int prompt_height(int n) { return n == 1 ? 8 : 4; }

    using F = __m256;
    using I = __m256i;

#define MM(name) _mm256_##name
#define MM_SI(name) _mm256_##name##_si256
#ifdef __AVXVNNI__
#define MM_VNNI(name) _mm256_##name##_avx_epi32
#endif
#include "kernels/simd/simd_x86.h"

    static I with_signs(I a, I of) { return _mm256_sign_epi8(a, of); }
    static constexpr int kCodeChains = kBiasedK ? 6 : 4;

    static float reduce_max(F a) { return largest_of(a); }

    static F load_f16(const char * p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))); }
    static F load_some(const void * p, int) { return load(p); }
    static void store_some(void * p, F a, int) { store(p, a); }
    static F load_some_f16(const char * p, int) { return load_f16(p); }
    static F gather_f16(const char * p, size_t stride) { return _mm256_cvtph_ps(gather_8_halves(p, stride)); }
    static F load_i8(const char * p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
    }
    static F load_q4(const char * p, bool high) {
        const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p));
        const __m128i nibbles = _mm_and_si128(high ? _mm_srli_epi16(codes, 4) : codes, _mm_set1_epi8(15));
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_sub_epi8(nibbles, _mm_set1_epi8(8))));
    }

    static F round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static F scale2(F a, F n) {
        const I biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        return mul(a, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)));
    }
    static F zero_below(F a, F x, F limit) { return _mm256_and_ps(a, _mm256_cmp_ps(x, limit, _CMP_GE_OQ)); }

    static bool all_same(F x) {
        return _mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_broadcastss_ps(_mm256_castps256_ps128(x)), _CMP_NEQ_UQ)) == 0;
    }
    static unsigned visible_bits(F bias) {
        return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(bias, set1(-__builtin_inff()), _CMP_GT_OQ)));
    }
    static F add_bias(F s, F bias) {
        return _mm256_blendv_ps(bias, add(s, bias), _mm256_cmp_ps(bias, set1(-__builtin_inff()), _CMP_GT_OQ));
    }

    static F join(const F * x) { return add(_mm256_permute2f128_ps(x[0], x[1], 0x20), _mm256_permute2f128_ps(x[0], x[1], 0x31)); }

    static I load_q8(const char * row, int v, int) { return iload(row + static_cast<size_t>(v) * 34 + 2); }
    static void block_sums(const I * acc, I * out) {
        out[0] = _mm256_add_epi32(_mm256_permute2x128_si256(acc[0], acc[1], 0x20), _mm256_permute2x128_si256(acc[0], acc[1], 0x31));
    }

    static I iload_twice(const void * p) { return iload(p); }
    template <int N>
    static void turn_groups(const I * acc, I * out) {
        out[0] = _mm256_permute2x128_si256(acc[0], acc[1], 0x20);
        out[1] = _mm256_permute2x128_si256(acc[0], acc[1], 0x31);
    }

    static void in_register(I & a) { asm("" : "+x"(a)); }
    static float sum(F a) {
        __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
    }
    template <class Op>
    static I fold4(I a, I b, I c, I d, Op op) {
        const I ab = op(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        const I cd = op(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        const I x = op(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
        return op(x, _mm256_permute2x128_si256(x, x, 1));
    }
    static I iprefix(I a) {
        a = _mm256_add_epi32(a, _mm256_slli_si256(a, 4));
        a = _mm256_add_epi32(a, _mm256_slli_si256(a, 8));
        const I low = _mm256_permutevar8x32_epi32(a, _mm256_set1_epi32(3));
        return _mm256_add_epi32(a, _mm256_blend_epi32(izero(), low, 0xf0));
    }
    static I ilast(I a) { return _mm256_permutevar8x32_epi32(a, _mm256_set1_epi32(7)); }
    static unsigned lanes_differ(I a, I b) {
        return 0xffu ^ static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b))));
    }
    static I lanes_of(I a, I b, unsigned bits) {
        const I lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        const I wanted = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane), lane);
        return _mm256_blendv_epi8(a, b, wanted);
    }
    static int append(int32_t * to, I a, unsigned bits) {
        alignas(32) int32_t lanes[8];
        istore(lanes, a);
        int n = 0;
        for (; bits != 0; bits &= bits - 1) {
            to[n++] = lanes[__builtin_ctz(bits)];
        }
        return n;
    }
    static I icount(int first) { return _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)); }
    static I select(I mask, I a, I b) { return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b)); }
    static F as_float(I a) { return _mm256_castsi256_ps(a); }
    static I as_int(F a) { return _mm256_castps_si256(a); }
    static F where_positive(F x, F a, F b) { return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, zero(), _CMP_GT_OQ)); }
    static void store_low_bytes(void * p, I a) {
        const I low = _mm256_shuffle_epi8(a, _mm256_set1_epi32(0x0c080400));
        _mm_storel_epi64(static_cast<__m128i *>(p), _mm_unpacklo_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
    }
    static void store_upper_halves(void * p, I a, I b) {
        const I mixed = _mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
        istore(p, _mm256_permute4x64_epi64(mixed, 0xd8));
    }
    static F load_upper_halves(const void * p) {
        return as_float(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i *>(p))), 16));
    }
    static F dup_f16(const char * p) { return _mm256_cvtph_ps(_mm_set1_epi16(half_bits(p))); }

    template <class Of>
    [[gnu::always_inline]] static I lanes16(Of of) { return _mm256_set_m128i(of(1), of(0)); }
    static I dup8(const void * p) {
        int64_t x;
        __builtin_memcpy(&x, p, 8);
        return _mm256_set1_epi64x(x);
    }
    static I widened(__m128i bytes, int set) { return _mm256_cvtepu8_epi64(set == 0 ? bytes : _mm_srli_si128(bytes, 4)); }
    static F doubled(__m256 a, int set) {
        return _mm256_permutevar8x32_ps(a, _mm256_add_epi32(_mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), _mm256_set1_epi32(4 * set)));
    }
    static I dup_group(__m128i a) { return _mm256_broadcastsi128_si256(a); }
    template <int FIRST, int SECOND>
    static I moved(I a) { return FIRST >= 0 ? _mm256_srli_epi32(a, FIRST & 31) : _mm256_slli_epi32(a, -FIRST & 31); }

    static bool any_above(F a, F b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }
    static F where_bits(I a, I bits, F yes, F no) {
        return _mm256_blendv_ps(yes, no, as_float(_mm256_cmpeq_epi32(_mm256_and_si256(a, bits), izero())));
    }
    static void transpose(F (&x)[8]) { transpose_8(x); }
};

}  // namespace
}  // namespace edgekv
