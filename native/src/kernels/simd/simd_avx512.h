// AVX-512 (F, BW, VL, DQ; VNNI where the translation unit has it).
#pragma once

#include "kernels/simd/simd_gather.h"

#include <cstddef>
#include <cstdint>

namespace edgekv {
namespace {

struct Simd {
    static constexpr int kLanes = 16;
    static constexpr int kQueries = 4;    // queries per register block
    static constexpr int kPvVectors = 4;  // output vectors per query and register block
    static constexpr int kPromptPanels = 3;                 // vectors of queries of a prompt's register block,
    static constexpr int prompt_height(int) { return 8; }   // and cells or channels against so many vectors

    using F = __m512;
    using I = __m512i;

#define MM(name) _mm512_##name
#define MM_SI(name) _mm512_##name##_si512
#ifdef __AVX512VNNI__
#define MM_VNNI(name) _mm512_##name##_epi32
#endif
#include "kernels/simd/simd_x86.h"

    static I with_signs(I a, I of) { return _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(of), izero(), a); }
    static constexpr int kCodeChains = kBiasedK ? 16 : 8;

    static float reduce_max(F a) { return _mm512_reduce_max_ps(a); }

    static F load_f16(const char * p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))); }
    // For the end of a row with 8, or at least kLanes, values left: later memory is not touched, and its lanes are 0.
    static __mmask16 some(int n) { return n < kLanes ? 0xff : 0xffff; }
    static F load_some(const void * p, int n) { return _mm512_maskz_loadu_ps(some(n), p); }
    static void store_some(void * p, F a, int n) { _mm512_mask_storeu_ps(p, some(n), a); }
    static F load_some_f16(const char * p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some(n), p)); }
    // Halves `stride` bytes apart.
    static F gather_f16(const char * p, size_t stride) {
        const __m128i lo = gather_8_halves(p, stride), hi = gather_8_halves(p + 8 * stride, stride);
        return _mm512_cvtph_ps(_mm256_set_m128i(hi, lo));
    }
    static F load_i8(const char * p) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
    }
    // The 16 low or high halves of bytes of q4_0 codes, as values.
    static F load_q4(const char * p, bool high) {
        const I bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
        const F values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
        return _mm512_permutexvar_ps(high ? _mm512_srli_epi32(bytes, 4) : bytes, values);  // looks at four bits
    }

    static F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static F scale2(F a, F n) { return _mm512_scalef_ps(a, n); }  // a * 2^n
    static F zero_below(F a, F x, F limit) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_GE_OQ), a); }

    // Bits of the lanes whose bias lets the cell be seen.
    static bool all_same(F x) { return _mm512_cmp_ps_mask(x, _mm512_broadcastss_ps(_mm512_castps512_ps128(x)), _CMP_NEQ_UQ) == 0; }
    static unsigned visible_bits(F bias) { return _mm512_cmp_ps_mask(bias, set1(-__builtin_inff()), _CMP_GT_OQ); }
    // s + bias, but -inf if the bias is -inf, whatever s holds.
    static F add_bias(F s, F bias) {
        return _mm512_mask_add_ps(bias, _mm512_cmp_ps_mask(bias, set1(-__builtin_inff()), _CMP_GT_OQ), s, bias);
    }

    // Sums the 128-bit groups of x[i] into group i.
    static F join(const F * x) {
        const F lo = add(_mm512_shuffle_f32x4(x[0], x[1], 0x88), _mm512_shuffle_f32x4(x[0], x[1], 0xdd));
        const F hi = add(_mm512_shuffle_f32x4(x[2], x[3], 0x88), _mm512_shuffle_f32x4(x[2], x[3], 0xdd));
        return add(_mm512_shuffle_f32x4(lo, hi, 0x88), _mm512_shuffle_f32x4(lo, hi, 0xdd));
    }

    // The int8 values of blocks 2v and 2v+1 of a q8_0 row; zeros for a block that the row lacks.
    static I load_q8(const char * row, int v, int n_blocks) {
        const char * p = row + static_cast<size_t>(2 * v) * 34 + 2;
        const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
        if (2 * v + 1 >= n_blocks) {
            return _mm512_zextsi256_si512(lo);
        }
        return _mm512_inserti64x4(_mm512_castsi256_si512(lo), _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p + 34)), 1);
    }
    // acc[g] holds 4 cells with partial sums in its 128-bit groups; out[b] becomes the 16 cells' sums over block b.
    static void block_sums(const I * acc, I * out) {
        const I lo = _mm512_add_epi32(_mm512_shuffle_i32x4(acc[0], acc[1], 0x88), _mm512_shuffle_i32x4(acc[0], acc[1], 0xdd));
        const I hi = _mm512_add_epi32(_mm512_shuffle_i32x4(acc[2], acc[3], 0x88), _mm512_shuffle_i32x4(acc[2], acc[3], 0xdd));
        out[0] = _mm512_shuffle_i32x4(lo, hi, 0x88);
        out[1] = _mm512_shuffle_i32x4(lo, hi, 0xdd);
    }

    // acc[g] holds N groups of cells: out[b] becomes the b-th 128-bit groups of all of them. With N = 2 they hold two groups of cells each.
    template <int N>
    static void turn_groups(const I * acc, I * out) {
        const I even = _mm512_shuffle_i32x4(acc[0], acc[1], 0x88), odd = _mm512_shuffle_i32x4(acc[0], acc[1], 0xdd);
        if constexpr (N == 2) {
            out[0] = even;
            out[1] = odd;
        } else {
            const I even2 = _mm512_shuffle_i32x4(acc[2], acc[3], 0x88), odd2 = _mm512_shuffle_i32x4(acc[2], acc[3], 0xdd);
            out[0] = _mm512_shuffle_i32x4(even, even2, 0x88);
            out[1] = _mm512_shuffle_i32x4(odd, odd2, 0x88);
            out[2] = _mm512_shuffle_i32x4(even, even2, 0xdd);
            out[3] = _mm512_shuffle_i32x4(odd, odd2, 0xdd);
        }
    }
    static I iload_twice(const void * p) { return _mm512_broadcast_i64x4(_mm256_loadu_si256(static_cast<const __m256i *>(p))); }

    // ---- sketches and sampling: a lane is a cell, or four channels ----

    static void in_register(I & a) { asm("" : "+v"(a)); }  // one load for several uses; otherwise the compiler loads again
    static float sum(F a) { return _mm512_reduce_add_ps(a); }
    // Lane i, below 4: all lanes of the i-th in one.
    template <class Op>
    static I fold4(I a, I b, I c, I d, Op op) {
        const I ab = op(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        const I cd = op(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        const I x = op(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
        const I y = op(x, _mm512_shuffle_i32x4(x, x, 0x4e));
        return op(y, _mm512_shuffle_i32x4(y, y, 0xb1));
    }
    static I iprefix(I a) {  // sums of the lanes up to each
        a = _mm512_add_epi32(a, _mm512_alignr_epi32(a, izero(), 15));
        a = _mm512_add_epi32(a, _mm512_alignr_epi32(a, izero(), 14));
        a = _mm512_add_epi32(a, _mm512_alignr_epi32(a, izero(), 12));
        return _mm512_add_epi32(a, _mm512_alignr_epi32(a, izero(), 8));
    }
    static I ilast(I a) { return _mm512_permutexvar_epi32(_mm512_set1_epi32(15), a); }  // the last lane, to every lane
    static unsigned lanes_differ(I a, I b) { return _mm512_cmpneq_epi32_mask(a, b); }
    static I lanes_of(I a, I b, unsigned bits) {  // of b where a bit is set
        return _mm512_mask_mov_epi32(a, static_cast<__mmask16>(bits), b);
    }
    // Stores the lanes whose bit is set one after the other; may write all lanes of `to`. Returns their number.
    static int append(int32_t * to, I a, unsigned bits) {
        _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(bits), a));
        return __builtin_popcount(bits);
    }
    static I icount(int first) {  // first, first + 1, ...
        return _mm512_add_epi32(_mm512_set1_epi32(first), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    }
    static I select(I mask, I a, I b) { return _mm512_ternarylogic_epi32(mask, a, b, 0xca); }  // bitwise mask ? a : b
    static F as_float(I a) { return _mm512_castsi512_ps(a); }
    static I as_int(F a) { return _mm512_castps_si512(a); }
    static F where_positive(F x, F a, F b) {                // x > 0 ? a : b
        return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, zero(), _CMP_GT_OQ), a);
    }
    static void store_low_bytes(void * p, I a) { _mm_storeu_si128(static_cast<__m128i *>(p), _mm512_cvtepi32_epi8(a)); }
    static void store_upper_halves(void * p, I a, I b) {  // of a, then of b
        const I mixed = _mm512_packus_epi32(_mm512_srli_epi32(a, 16), _mm512_srli_epi32(b, 16));  // by 128-bit groups
        _mm512_storeu_si512(p, _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), mixed));
    }
    static F load_upper_halves(const void * p) {
        return as_float(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i *>(p))), 16));
    }
    static F dup_f16(const char * p) { return _mm512_cvtph_ps(_mm256_set1_epi16(half_bits(p))); }

    // ---- products: a group of 128 bits is a row ----

    template <class Of>
    [[gnu::always_inline]] static I lanes16(Of of) {  // 16 bytes, of(group)
        I x = _mm512_castsi128_si512(of(0));
        x = _mm512_inserti32x4(x, of(1), 1);
        x = _mm512_inserti32x4(x, of(2), 2);
        return _mm512_inserti32x4(x, of(3), 3);
    }
    static I dup8(const void * p) {
        int64_t x;
        __builtin_memcpy(&x, p, 8);
        return _mm512_set1_epi64(x);
    }
    // Bytes of a set of kLanes / 2, each to eight bytes; floats of a set, each to two lanes.
    static I widened(__m128i bytes, int) { return _mm512_cvtepu8_epi64(bytes); }
    static F doubled(__m256 a, int) {
        return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), _mm512_castps256_ps512(a));
    }
    static I dup_group(__m128i a) { return _mm512_broadcast_i32x4(a); }  // to every group
    // The bits of each int moved right by FIRST in the lower 32 bytes, by SECOND in the others, or left where negative. Bits that leave are undefined.
    template <int FIRST, int SECOND>
    static I moved(I a) {
        const I by = _mm512_inserti64x4(_mm512_set1_epi32(FIRST & 31), _mm256_set1_epi32(SECOND & 31), 1);
        return _mm512_rorv_epi32(a, by);
    }

    // ---- prompts: a lane is a query ----

    static bool any_above(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
    static F where_bits(I a, I bits, F yes, F no) {  // a & bits ? yes : no
        return _mm512_mask_mov_ps(no, _mm512_test_epi32_mask(a, bits), yes);
    }
    // Lane j of x[i] changes places with lane i of x[j].
    static void transpose(F (&x)[16]) {
        F a[16];
        _Pragma("GCC unroll 4") for (int i = 0; i < 16; i += 4) {
            const F ab0 = _mm512_unpacklo_ps(x[i], x[i + 1]), ab1 = _mm512_unpackhi_ps(x[i], x[i + 1]);
            const F cd0 = _mm512_unpacklo_ps(x[i + 2], x[i + 3]), cd1 = _mm512_unpackhi_ps(x[i + 2], x[i + 3]);
            a[i] = _mm512_shuffle_ps(ab0, cd0, 0x44);
            a[i + 1] = _mm512_shuffle_ps(ab0, cd0, 0xee);
            a[i + 2] = _mm512_shuffle_ps(ab1, cd1, 0x44);
            a[i + 3] = _mm512_shuffle_ps(ab1, cd1, 0xee);
        }
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i) {  // a[4 r + i]: columns i, 4 + i, 8 + i and 12 + i of rows 4 r and on
            const F lo0 = _mm512_shuffle_f32x4(a[i], a[4 + i], 0x88), lo1 = _mm512_shuffle_f32x4(a[i], a[4 + i], 0xdd);
            const F hi0 = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0x88), hi1 = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0xdd);
            x[i] = _mm512_shuffle_f32x4(lo0, hi0, 0x88);
            x[8 + i] = _mm512_shuffle_f32x4(lo0, hi0, 0xdd);
            x[4 + i] = _mm512_shuffle_f32x4(lo1, hi1, 0x88);
            x[12 + i] = _mm512_shuffle_f32x4(lo1, hi1, 0xdd);
        }
    }
};

}  // namespace
}  // namespace edgekv
