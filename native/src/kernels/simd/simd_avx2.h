// AVX2 + FMA + F16C; AVX-VNNI where the translation unit has it.
#pragma once

#include "kernels/simd/simd_gather.h"
#include "kernels/simd/vectors_256.h"

#include <cstddef>
#include <cstdint>

namespace edgekv {
namespace {

// The comments on the operations are in simd_avx512.h.
struct Simd {
    static constexpr int kLanes = 8;
    static constexpr int kQueries = 3;
    static constexpr int kPvVectors = 4;
    static constexpr int kPromptPanels = 2;
    static constexpr int prompt_height(int n) { return n == 1 ? 8 : 4; }
#ifdef __AVXVNNI__
    static constexpr bool kBiasedK = true;
#else
    static constexpr bool kBiasedK = false;
#endif

    using F = __m256;
    using I = __m256i;

    static F zero() { return _mm256_setzero_ps(); }
    static F set1(float x) { return _mm256_set1_ps(x); }
    static F load(const void * p) { return _mm256_loadu_ps(static_cast<const float *>(p)); }
    static void store(void * p, F a) { _mm256_storeu_ps(static_cast<float *>(p), a); }
    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F div(F a, F b) { return _mm256_div_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static F min(F a, F b) { return _mm256_min_ps(a, b); }
    static F max(F a, F b) { return _mm256_max_ps(a, b); }
    static float reduce_max(F a) { return largest_of(a); }

    static void prefetch(const char * p) { _mm_prefetch(p, _MM_HINT_T1); }
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

    static F quad(F a, F b, F c, F d) {
        const F ab = add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        const F cd = add(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        return add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    }
    static F join(const F * x) { return add(_mm256_permute2f128_ps(x[0], x[1], 0x20), _mm256_permute2f128_ps(x[0], x[1], 0x31)); }

    static I izero() { return _mm256_setzero_si256(); }
    static I iload(const void * p) { return _mm256_loadu_si256(static_cast<const __m256i *>(p)); }
    static F to_float(I a) { return _mm256_cvtepi32_ps(a); }
    static I isub(I a, int b) { return _mm256_sub_epi32(a, _mm256_set1_epi32(b)); }

    static I load_q8(const char * row, int v, int) { return iload(row + static_cast<size_t>(v) * 34 + 2); }
    static void transpose4(I * k) {
        turn4(k);
#ifdef __AVXVNNI__
        for (int i = 0; i < 4; ++i) {
            k[i] = _mm256_xor_si256(k[i], _mm256_set1_epi8(-128));
        }
#endif
    }
    static void turn4(I * k) {
        const I ab0 = _mm256_unpacklo_epi32(k[0], k[1]), ab1 = _mm256_unpackhi_epi32(k[0], k[1]);
        const I cd0 = _mm256_unpacklo_epi32(k[2], k[3]), cd1 = _mm256_unpackhi_epi32(k[2], k[3]);
        k[0] = _mm256_unpacklo_epi64(ab0, cd0);
        k[1] = _mm256_unpackhi_epi64(ab0, cd0);
        k[2] = _mm256_unpacklo_epi64(ab1, cd1);
        k[3] = _mm256_unpackhi_epi64(ab1, cd1);
    }
    static I dot4(I acc, I k, I q) {
#ifdef __AVXVNNI__
        return _mm256_dpbusd_avx_epi32(acc, k, q);
#else
        const I pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(k), _mm256_sign_epi8(q, k));
        return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
    }
    static void block_sums(const I * acc, I * out) {
        out[0] = _mm256_add_epi32(_mm256_permute2x128_si256(acc[0], acc[1], 0x20), _mm256_permute2x128_si256(acc[0], acc[1], 0x31));
    }

    template <class At>
    [[gnu::always_inline]] static I groups_at(At at) {
        const auto load = [&](int g) {
            const char * p = at(g);
            return p != nullptr ? _mm_loadu_si128(reinterpret_cast<const __m128i *>(p)) : _mm_setzero_si128();
        };
        return _mm256_set_m128i(load(1), load(0));
    }
    static I iload_twice(const void * p) { return iload(p); }
    template <int N>
    static void turn_groups(const I * acc, I * out) {
        out[0] = _mm256_permute2x128_si256(acc[0], acc[1], 0x20);
        out[1] = _mm256_permute2x128_si256(acc[0], acc[1], 0x31);
    }

    static void in_register(I & a) { asm("" : "+x"(a)); }
    static void istore(void * p, I a) { _mm256_storeu_si256(static_cast<__m256i *>(p), a); }
    static I iset1(int x) { return _mm256_set1_epi32(x); }
    static I idup4(const char * p) {
        int x;
        __builtin_memcpy(&x, p, 4);
        return _mm256_set1_epi32(x);
    }
    static I iadd(I a, I b) { return _mm256_add_epi32(a, b); }
    static I idiff(I a, I b) { return _mm256_sub_epi32(a, b); }
    static I imax(I a, I b) { return _mm256_max_epi32(a, b); }
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
    static I to_int(F a) { return _mm256_cvtps_epi32(a); }
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
    template <int N>
    static I right(I a) { return N == 0 ? a : _mm256_srli_epi32(a, N); }
    static I iand(I a, I b) { return _mm256_and_si256(a, b); }
#ifdef __AVXVNNI__
    static constexpr int kCodeDots = 1 << 20, kCodeChains = 6;
    static I code_dot(I acc, I codes, I q) { return dot4(acc, codes, q); }
    static I code_sums(I total, I acc) { return _mm256_add_epi32(total, acc); }
    static constexpr bool kWideSums = true;
    static I scaled_sums(I total, I acc, I factors) { return _mm256_dpwssd_avx_epi32(total, acc, factors); }
    static I dot4_stored(I acc, I k, I q) { return dot4(acc, k, q); }
#else
    static constexpr int kCodeDots = 16, kCodeChains = 4;
    static I code_dot(I acc, I codes, I q) { return _mm256_add_epi16(acc, _mm256_maddubs_epi16(codes, q)); }
    static I code_sums(I total, I acc) { return _mm256_add_epi32(total, _mm256_madd_epi16(acc, _mm256_set1_epi16(1))); }
    static constexpr bool kWideSums = false;
    static I scaled_sums(I total, I acc, I factors) { return _mm256_add_epi32(total, _mm256_madd_epi16(acc, factors)); }
    static I dot4_stored(I acc, I k, I q) { return dot4(acc, _mm256_xor_si256(k, _mm256_set1_epi8(-128)), q); }
#endif
    static I scale_bytes(I a, I lo, I hi) {
        const I first = _mm256_mulhrs_epi16(_mm256_unpacklo_epi8(a, izero()), lo);
        return _mm256_packs_epi16(first, _mm256_mulhrs_epi16(_mm256_unpackhi_epi8(a, izero()), hi));
    }
    static F dup_f16(const char * p) { return _mm256_cvtph_ps(_mm_set1_epi16(half_bits(p))); }

    template <int N>
    static I left(I a) { return _mm256_slli_epi32(a, N); }
    template <class Of>
    [[gnu::always_inline]] static I lanes16(Of of) { return _mm256_set_m128i(of(1), of(0)); }
    static I dup16(const void * p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i *>(p))); }
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
    static I dup32(const void * p) { return iload(p); }
    template <int FIRST, int SECOND>
    static I moved(I a) { return FIRST >= 0 ? _mm256_srli_epi32(a, FIRST & 31) : _mm256_slli_epi32(a, -FIRST & 31); }
    static I right_by(I a, int n) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(n)); }
    static I ior(I a, I b) { return _mm256_or_si256(a, b); }
    static I ixor(I a, I b) { return _mm256_xor_si256(a, b); }
    static I min_bytes(I a, I b) { return _mm256_min_epu8(a, b); }
    static I shuffle_bytes(I a, I which) { return _mm256_shuffle_epi8(a, which); }
    template <int N>
    static F fourth(F a) { return _mm256_permute_ps(a, N * 0x55); }

    static bool any_above(F a, F b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }
    static F where_bits(I a, I bits, F yes, F no) {
        return _mm256_blendv_ps(yes, no, as_float(_mm256_cmpeq_epi32(_mm256_and_si256(a, bits), izero())));
    }
    static void transpose(F (&x)[8]) { transpose_8(x); }
};

}  // namespace
}  // namespace edgekv
