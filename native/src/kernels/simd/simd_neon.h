// NEON of AArch64: pairs of 128-bit vectors, so that 32 registers hold what AVX2's 16 do. Dot products of bytes where the translation unit has them.
#pragma once

#include <arm_neon.h>

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
    static constexpr bool kBiasedK = false;

    struct F {
        float32x4_t lo, hi;
    };
    struct I {
        int32x4_t lo, hi;
    };

    static F zero() { return set1(0.0f); }
    static F set1(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
    static F load(const void * p) {
        const float * x = static_cast<const float *>(p);
        return {vld1q_f32(x), vld1q_f32(x + 4)};
    }
    static void store(void * p, F a) {
        float * x = static_cast<float *>(p);
        vst1q_f32(x, a.lo);
        vst1q_f32(x + 4, a.hi);
    }
    static F add(F a, F b) { return {vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)}; }
    static F sub(F a, F b) { return {vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)}; }
    static F mul(F a, F b) { return {vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)}; }
    static F div(F a, F b) { return {vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)}; }
    static F fma(F a, F b, F c) { return {vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)}; }
    // of a number and a NaN they give the number
    static F min(F a, F b) { return {vminnmq_f32(a.lo, b.lo), vminnmq_f32(a.hi, b.hi)}; }
    static F max(F a, F b) { return {vmaxnmq_f32(a.lo, b.lo), vmaxnmq_f32(a.hi, b.hi)}; }
    static float reduce_max(F a) { return vmaxnmvq_f32(vmaxnmq_f32(a.lo, a.hi)); }

    static void prefetch(const char * p) { __builtin_prefetch(p, 0, 2); }
    static F widened(uint16x8_t halves) {
        const float16x8_t x = vreinterpretq_f16_u16(halves);
        return {vcvt_f32_f16(vget_low_f16(x)), vcvt_high_f32_f16(x)};
    }
    static F load_f16(const char * p) { return widened(vreinterpretq_u16_u8(bytes_at(p))); }
    static F load_some(const void * p, int) { return load(p); }
    static void store_some(void * p, F a, int) { store(p, a); }
    static F load_some_f16(const char * p, int) { return load_f16(p); }
    static F gather_f16(const char * p, size_t stride) {
        const auto half = [&](size_t i) { return reinterpret_cast<const uint16_t *>(p + i * stride); };
        uint16x8_t x = vdupq_n_u16(0);
        x = vld1q_lane_u16(half(0), x, 0);
        x = vld1q_lane_u16(half(1), x, 1);
        x = vld1q_lane_u16(half(2), x, 2);
        x = vld1q_lane_u16(half(3), x, 3);
        x = vld1q_lane_u16(half(4), x, 4);
        x = vld1q_lane_u16(half(5), x, 5);
        x = vld1q_lane_u16(half(6), x, 6);
        return widened(vld1q_lane_u16(half(7), x, 7));
    }
    static F dup_f16(const char * p) { return widened(vld1q_dup_u16(reinterpret_cast<const uint16_t *>(p))); }
    static F of_bytes(int8x8_t bytes) {
        const int16x8_t words = vmovl_s8(bytes);
        return to_float({vmovl_s16(vget_low_s16(words)), vmovl_high_s16(words)});
    }
    static F load_i8(const char * p) { return of_bytes(vld1_s8(reinterpret_cast<const int8_t *>(p))); }
    static F load_q4(const char * p, bool high) {
        const uint8x8_t codes = vld1_u8(reinterpret_cast<const uint8_t *>(p));
        const uint8x8_t nibbles = high ? vshr_n_u8(codes, 4) : vand_u8(codes, vdup_n_u8(15));
        return of_bytes(vsub_s8(vreinterpret_s8_u8(nibbles), vdup_n_s8(8)));
    }

    static F round(F a) { return {vrndnq_f32(a.lo), vrndnq_f32(a.hi)}; }
    static F scale2(F a, F n) { return mul(a, as_float(left<23>(iadd(to_int(n), iset1(127))))); }
    static F zero_below(F a, F x, F limit) { return as_float(iand(as_int(a), ints(vcgeq_f32(x.lo, limit.lo), vcgeq_f32(x.hi, limit.hi)))); }

    static bool all_same(F x) {
        const float32x4_t first = vdupq_laneq_f32(x.lo, 0);
        return vminvq_u32(vandq_u32(vceqq_f32(x.lo, first), vceqq_f32(x.hi, first))) != 0;
    }
    static unsigned visible_bits(F bias) { return bits_of(seen(bias)); }
    static F add_bias(F s, F bias) { return where(seen(bias), add(s, bias), bias); }

    static F quad(F a, F b, F c, F d) {
        return {vpaddq_f32(vpaddq_f32(a.lo, b.lo), vpaddq_f32(c.lo, d.lo)), vpaddq_f32(vpaddq_f32(a.hi, b.hi), vpaddq_f32(c.hi, d.hi))};
    }
    static F join(const F * x) { return {vaddq_f32(x[0].lo, x[0].hi), vaddq_f32(x[1].lo, x[1].hi)}; }

    static I izero() { return iset1(0); }
    static I iload(const void * p) {
        const char * x = static_cast<const char *>(p);
        return {vreinterpretq_s32_u8(bytes_at(x)), vreinterpretq_s32_u8(bytes_at(x + 16))};
    }
    static F to_float(I a) { return {vcvtq_f32_s32(a.lo), vcvtq_f32_s32(a.hi)}; }
    static I isub(I a, int b) { return idiff(a, iset1(b)); }

    static I load_q8(const char * row, int v, int) { return iload(row + static_cast<size_t>(v) * 34 + 2); }
    static void turn4(I * k) {
        turn(k[0].lo, k[1].lo, k[2].lo, k[3].lo);
        turn(k[0].hi, k[1].hi, k[2].hi, k[3].hi);
    }
    static void transpose4(I * k) { turn4(k); }
    static I dot4(I acc, I k, I q) { return {dot(acc.lo, k.lo, q.lo), dot(acc.hi, k.hi, q.hi)}; }
    static void block_sums(const I * acc, I * out) { out[0] = {vaddq_s32(acc[0].lo, acc[0].hi), vaddq_s32(acc[1].lo, acc[1].hi)}; }

    template <class At>
    [[gnu::always_inline]] static I groups_at(At at) {
        const auto group = [&](int g) {
            const char * p = at(g);
            return p != nullptr ? vreinterpretq_s32_u8(bytes_at(p)) : vdupq_n_s32(0);
        };
        return {group(0), group(1)};
    }
    static I iload_twice(const void * p) { return iload(p); }
    template <int N>
    static void turn_groups(const I * acc, I * out) {
        out[0] = {acc[0].lo, acc[1].lo};
        out[1] = {acc[0].hi, acc[1].hi};
    }

    static void in_register(I &) {}  // operands are never in memory
    static void istore(void * p, I a) {
        int32_t * x = static_cast<int32_t *>(p);
        vst1q_s32(x, a.lo);
        vst1q_s32(x + 4, a.hi);
    }
    static I iset1(int x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
    static I idup4(const char * p) {
        int x;
        __builtin_memcpy(&x, p, 4);
        return iset1(x);
    }
    static I iadd(I a, I b) { return {vaddq_s32(a.lo, b.lo), vaddq_s32(a.hi, b.hi)}; }
    static I idiff(I a, I b) { return {vsubq_s32(a.lo, b.lo), vsubq_s32(a.hi, b.hi)}; }
    static I imax(I a, I b) { return {vmaxq_s32(a.lo, b.lo), vmaxq_s32(a.hi, b.hi)}; }
    static float sum(F a) {
        const float32x4_t x = vaddq_f32(a.lo, a.hi);
        return vaddv_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x)));
    }
    template <class Op>
    static I fold4(I a, I b, I c, I d, Op op) {
        I x[4] = {a, b, c, d};
        turn4(x);
        const I y = op(op(x[0], x[2]), op(x[1], x[3]));
        return op(y, I{y.hi, y.lo});
    }
    static I iprefix(I a) {
        const int32x4_t none = vdupq_n_s32(0);
        const auto prefix = [&](int32x4_t x) {
            x = vaddq_s32(x, vextq_s32(none, x, 3));
            return vaddq_s32(x, vextq_s32(none, x, 2));
        };
        const int32x4_t first = prefix(a.lo);
        return {first, vaddq_s32(prefix(a.hi), vdupq_laneq_s32(first, 3))};
    }
    static I ilast(I a) { return {vdupq_laneq_s32(a.hi, 3), vdupq_laneq_s32(a.hi, 3)}; }
    static unsigned lanes_differ(I a, I b) { return 0xffu ^ bits_of(ints(vceqq_s32(a.lo, b.lo), vceqq_s32(a.hi, b.hi))); }
    static I lanes_of(I a, I b, unsigned bits) {
        const I all = iset1(static_cast<int>(bits)), lane = lane_bit();
        return select(ints(vtstq_s32(all.lo, lane.lo), vtstq_s32(all.hi, lane.hi)), b, a);
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
    static I icount(int first) {
        alignas(32) static constexpr int32_t lanes[8] = {0, 1, 2, 3, 4, 5, 6, 7};
        return iadd(iset1(first), iload(lanes));
    }
    static I select(I mask, I a, I b) {
        return {vbslq_s32(vreinterpretq_u32_s32(mask.lo), a.lo, b.lo), vbslq_s32(vreinterpretq_u32_s32(mask.hi), a.hi, b.hi)};
    }
    static F as_float(I a) { return {vreinterpretq_f32_s32(a.lo), vreinterpretq_f32_s32(a.hi)}; }
    static I as_int(F a) { return {vreinterpretq_s32_f32(a.lo), vreinterpretq_s32_f32(a.hi)}; }
    static I to_int(F a) { return {vcvtnq_s32_f32(a.lo), vcvtnq_s32_f32(a.hi)}; }
    static F where_positive(F x, F a, F b) { return where(ints(vcgtzq_f32(x.lo), vcgtzq_f32(x.hi)), a, b); }
    static void store_low_bytes(void * p, I a) {
        vst1_s8(static_cast<int8_t *>(p), vmovn_s16(vcombine_s16(vmovn_s32(a.lo), vmovn_s32(a.hi))));
    }
    static void store_upper_halves(void * p, I a, I b) {
        const auto upper = [](I x) { return vuzp2q_u16(vreinterpretq_u16_s32(x.lo), vreinterpretq_u16_s32(x.hi)); };
        uint16_t * halves = static_cast<uint16_t *>(p);
        vst1q_u16(halves, upper(a));
        vst1q_u16(halves + 8, upper(b));
    }
    static F load_upper_halves(const void * p) {
        const uint16x8_t halves = vld1q_u16(static_cast<const uint16_t *>(p)), none = vdupq_n_u16(0);
        return {vreinterpretq_f32_u16(vzip1q_u16(none, halves)), vreinterpretq_f32_u16(vzip2q_u16(none, halves))};
    }
    template <int N>
    static I right(I a) {
        if constexpr (N == 0) {
            return a;
        } else {
            return ints(vshrq_n_u32(vreinterpretq_u32_s32(a.lo), N), vshrq_n_u32(vreinterpretq_u32_s32(a.hi), N));
        }
    }
    template <int N>
    static I left(I a) { return {vshlq_n_s32(a.lo, N), vshlq_n_s32(a.hi, N)}; }
    static I iand(I a, I b) { return {vandq_s32(a.lo, b.lo), vandq_s32(a.hi, b.hi)}; }
#ifdef __ARM_FEATURE_DOTPROD
    static constexpr int kCodeDots = 1 << 20, kCodeChains = 6;
    static I code_dot(I acc, I codes, I q) { return dot4(acc, codes, q); }
    static I code_sums(I total, I acc) { return iadd(total, acc); }
#else
    static constexpr int kCodeDots = 16, kCodeChains = 4;
    static I code_dot(I acc, I codes, I q) {
        const auto add = [](int32x4_t a, int32x4_t c, int32x4_t f) {
            return vreinterpretq_s32_s16(vaddq_s16(vreinterpretq_s16_s32(a), pair_sums(c, f)));
        };
        return {add(acc.lo, codes.lo, q.lo), add(acc.hi, codes.hi, q.hi)};
    }
    static I code_sums(I total, I acc) {
        return {vpadalq_s16(total.lo, vreinterpretq_s16_s32(acc.lo)), vpadalq_s16(total.hi, vreinterpretq_s16_s32(acc.hi))};
    }
#endif
    static I dot4_stored(I acc, I k, I q) {
        const int32x4_t signs = vreinterpretq_s32_u8(vdupq_n_u8(128));
        return dot4(acc, {veorq_s32(k.lo, signs), veorq_s32(k.hi, signs)}, q);
    }
    static I scale_bytes(I a, I lo, I hi) {
        const auto scaled = [](int32x4_t codes, int32x4_t first, int32x4_t last) {
            const uint8x16_t x = vreinterpretq_u8_s32(codes);
            const int16x8_t f = vqrdmulhq_s16(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(x))), vreinterpretq_s16_s32(first));
            const int16x8_t l = vqrdmulhq_s16(vreinterpretq_s16_u16(vmovl_high_u8(x)), vreinterpretq_s16_s32(last));
            return vreinterpretq_s32_s8(vqmovn_high_s16(vqmovn_s16(f), l));
        };
        return {scaled(a.lo, lo.lo, hi.lo), scaled(a.hi, lo.hi, hi.hi)};
    }

    static bool any_above(F a, F b) { return vmaxvq_u32(vorrq_u32(vcgtq_f32(a.lo, b.lo), vcgtq_f32(a.hi, b.hi))) != 0; }
    static F where_bits(I a, I bits, F yes, F no) {
        return where(ints(vtstq_s32(a.lo, bits.lo), vtstq_s32(a.hi, bits.hi)), yes, no);
    }
    static void transpose(F (&x)[8]) {
        I low[8], high[8];  // columns 0 to 3 and 4 to 7, of rows 0 to 3 in `lo` and 4 to 7 in `hi`
        for (int i = 0; i < 4; ++i) {
            const I top = as_int(x[i]), bottom = as_int(x[i + 4]);
            low[i] = {top.lo, bottom.lo};
            high[i] = {top.hi, bottom.hi};
        }
        turn4(low);
        turn4(high);
        for (int i = 0; i < 4; ++i) {
            x[i] = as_float(low[i]);
            x[i + 4] = as_float(high[i]);
        }
    }

private:
    static uint8x16_t bytes_at(const char * p) { return vld1q_u8(reinterpret_cast<const uint8_t *>(p)); }
    static I ints(uint32x4_t lo, uint32x4_t hi) { return {vreinterpretq_s32_u32(lo), vreinterpretq_s32_u32(hi)}; }
    static F where(I mask, F a, F b) { return as_float(select(mask, as_int(a), as_int(b))); }
    static I seen(F bias) {
        const float32x4_t hidden = vdupq_n_f32(-__builtin_inff());
        return ints(vcgtq_f32(bias.lo, hidden), vcgtq_f32(bias.hi, hidden));
    }
    static I lane_bit() {
        alignas(32) static constexpr int32_t bits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
        return iload(bits);
    }
    static unsigned bits_of(I mask) {
        const I bits = iand(mask, lane_bit());
        return static_cast<unsigned>(vaddvq_s32(vaddq_s32(bits.lo, bits.hi)));
    }
    static void turn(int32x4_t & a, int32x4_t & b, int32x4_t & c, int32x4_t & d) {
        const int32x4_t ab0 = vzip1q_s32(a, b), ab1 = vzip2q_s32(a, b), cd0 = vzip1q_s32(c, d), cd1 = vzip2q_s32(c, d);
        const auto both = [](int32x4_t x, int32x4_t y, bool upper) {
            const int64x2_t p = vreinterpretq_s64_s32(x), q = vreinterpretq_s64_s32(y);
            return vreinterpretq_s32_s64(upper ? vzip2q_s64(p, q) : vzip1q_s64(p, q));
        };
        a = both(ab0, cd0, false);
        b = both(ab0, cd0, true);
        c = both(ab1, cd1, false);
        d = both(ab1, cd1, true);
    }
    // Products of bytes, of which neighbours are summed. Not for two of -128.
    static int16x8_t pair_sums(int32x4_t k, int32x4_t q) {
        const int8x16_t x = vreinterpretq_s8_s32(k), y = vreinterpretq_s8_s32(q);
        return vpaddq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)), vmull_high_s8(x, y));
    }
    static int32x4_t dot(int32x4_t acc, int32x4_t k, int32x4_t q) {
#ifdef __ARM_FEATURE_DOTPROD
        return vdotq_s32(acc, vreinterpretq_s8_s32(k), vreinterpretq_s8_s32(q));
#else
        return vpadalq_s16(acc, pair_sums(k, q));
#endif
    }
};

}  // namespace
}  // namespace edgekv
