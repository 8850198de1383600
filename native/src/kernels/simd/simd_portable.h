// Plain C++17 for any architecture: vectors of 8 as loops that a compiler can map to its instructions.
#pragma once

#include <math.h>
#include <string.h>

#include <cstddef>
#include <cstdint>

namespace edgekv {
namespace {

// The comments on the operations are in simd_avx512.h.
struct Simd {
    static constexpr int kLanes = 8;
    static constexpr int kQueries = 2;
    static constexpr int kPvVectors = 2;
    static constexpr int kPromptPanels = 1;
    static constexpr int prompt_height(int) { return 4; }
    static constexpr bool kBiasedK = false;

    struct F {
        float x[8];
    };
    struct I {
        int32_t x[8];
    };

    template <class Lanes = F, class Op>
    static Lanes map(Op op) {
        Lanes r;
        for (int i = 0; i < 8; ++i) {
            r.x[i] = op(i);
        }
        return r;
    }
    template <class Op>
    static unsigned bits(Op op) {
        unsigned r = 0;
        for (int i = 0; i < 8; ++i) {
            r |= static_cast<unsigned>(op(i)) << i;
        }
        return r;
    }
    template <class T>
    static T copy(const void * p) {
        T r;
        memcpy(&r, p, sizeof(r));
        return r;
    }

    static F zero() { return set1(0.0f); }
    static F set1(float x) { return map([&](int) { return x; }); }
    static F load(const void * p) { return copy<F>(p); }
    static void store(void * p, const F & a) { memcpy(p, &a, sizeof(a)); }
    static F add(const F & a, const F & b) { return map([&](int i) { return a.x[i] + b.x[i]; }); }
    static F sub(const F & a, const F & b) { return map([&](int i) { return a.x[i] - b.x[i]; }); }
    static F mul(const F & a, const F & b) { return map([&](int i) { return a.x[i] * b.x[i]; }); }
    static F div(const F & a, const F & b) { return map([&](int i) { return a.x[i] / b.x[i]; }); }
    static F fma(const F & a, const F & b, const F & c) { return map([&](int i) { return a.x[i] * b.x[i] + c.x[i]; }); }
    static F min(const F & a, const F & b) { return map([&](int i) { return a.x[i] < b.x[i] ? a.x[i] : b.x[i]; }); }
    static F max(const F & a, const F & b) { return map([&](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; }); }
    static float reduce_max(const F & a) {
        float m = a.x[0];
        for (int i = 1; i < 8; ++i) {
            m = a.x[i] > m ? a.x[i] : m;
        }
        return m;
    }

    static void prefetch(const char * p) {
#if defined(__GNUC__)
        __builtin_prefetch(p, 0, 2);
#else
        (void) p;
#endif
    }
    static float widened(uint16_t half) {
        // Shifted into place, the exponent is too small by 112. A subnormal gets a leading one that is subtracted again, so that no
        // subnormal float arises: it would be slow, or zero (subnormals.h).
        const uint32_t bits = (half & 0x7fffu) << 13;
        const bool subnormal = bits < 0x00800000u;
        uint32_t u = bits + (subnormal ? 0x38800000u : 0x38000000u);
        u |= bits >= 0x0f800000u ? 0x7f800000u : 0u;
        const float x = copy<float>(&u) - (subnormal ? 0x1p-14f : 0.0f);
        u = copy<uint32_t>(&x) | (half & 0x8000u) << 16;
        return copy<float>(&u);
    }
    static F load_f16(const char * p) {
        uint16_t h[8];
        memcpy(h, p, sizeof(h));
        return map([&](int i) { return widened(h[i]); });
    }
    static F load_some(const void * p, int) { return load(p); }
    static void store_some(void * p, const F & a, int) { store(p, a); }
    static F load_some_f16(const char * p, int) { return load_f16(p); }
    static F gather_f16(const char * p, size_t stride) {
        char halves[16];
        for (int i = 0; i < 8; ++i) {
            memcpy(halves + 2 * i, p + static_cast<size_t>(i) * stride, 2);
        }
        return load_f16(halves);
    }
    static F load_i8(const char * p) {
        int8_t c[8];
        memcpy(c, p, sizeof(c));
        return map([&](int i) { return static_cast<float>(c[i]); });
    }

    static F load_q4(const char * p, bool high) {
        uint8_t c[8];
        memcpy(c, p, sizeof(c));
        return map([&](int i) { return static_cast<float>((c[i] >> (high ? 4 : 0) & 15) - 8); });
    }

    static F round(const F & a) {
        // Adding and subtracting 1.5 * 2^23 rounds to nearest for the |a| < 2^22 that matter here.
        return map([&](int i) { return (a.x[i] + 12582912.0f) - 12582912.0f; });
    }
    static F scale2(const F & a, const F & n) {
        return map([&](int i) {
            const float clamped = n.x[i] > -126.0f ? n.x[i] : -126.0f;
            const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(clamped) + 127) << 23;
            float power;
            memcpy(&power, &bits, sizeof(power));
            return a.x[i] * power;
        });
    }
    static F zero_below(const F & a, const F & x, const F & limit) {
        return map([&](int i) { return x.x[i] >= limit.x[i] ? a.x[i] : 0.0f; });
    }

    static bool all_same(const F & x) { return bits([&](int i) { return x.x[i] != x.x[0]; }) == 0; }
    static unsigned visible_bits(const F & bias) { return bits([&](int i) { return bias.x[i] > -INFINITY; }); }
    static F add_bias(const F & s, const F & bias) {
        return map([&](int i) { return bias.x[i] > -INFINITY ? s.x[i] + bias.x[i] : bias.x[i]; });
    }

    static F quad(const F & a, const F & b, const F & c, const F & d) {
        const F * in[4] = {&a, &b, &c, &d};
        return map([&](int i) {
            const float * x = in[i % 4]->x + i / 4 * 4;
            return (x[0] + x[2]) + (x[1] + x[3]);
        });
    }
    static F join(const F * x) { return map([&](int i) { return x[i / 4].x[i % 4] + x[i / 4].x[i % 4 + 4]; }); }

    static I izero() { return I{}; }
    static I iload_twice(const void * p) { return iload(p); }
    static I iload(const void * p) { return copy<I>(p); }
    static F to_float(const I & a) { return map([&](int i) { return static_cast<float>(a.x[i]); }); }
    static I isub(const I & a, int b) { return map<I>([&](int i) { return a.x[i] - b; }); }

    static I load_q8(const char * row, int v, int) { return iload(row + static_cast<size_t>(v) * 34 + 2); }
    static void transpose4(I * k) {
        const I in[4] = {k[0], k[1], k[2], k[3]};
        for (int j = 0; j < 4; ++j) {
            k[j] = map<I>([&](int i) { return in[i % 4].x[i / 4 * 4 + j]; });
        }
    }
    static I dot4(const I & acc, const I & k, const I & q) {
        int8_t a[32], b[32];
        memcpy(a, &k, sizeof(a));
        memcpy(b, &q, sizeof(b));
        return map<I>([&](int i) {
            return acc.x[i] + a[4 * i] * b[4 * i] + a[4 * i + 1] * b[4 * i + 1] + a[4 * i + 2] * b[4 * i + 2] + a[4 * i + 3] * b[4 * i + 3];
        });
    }
    static void block_sums(const I * acc, I * out) { out[0] = map<I>([&](int i) { return acc[i / 4].x[i % 4] + acc[i / 4].x[i % 4 + 4]; }); }

    template <class At>
    static I groups_at(At at) {
        I r{};
        for (int g = 0; g < 2; ++g) {
            if (const char * p = at(g)) {
                memcpy(r.x + 4 * g, p, 16);
            }
        }
        return r;
    }
    static void turn4(I * k) { transpose4(k); }
    template <int N>
    static void turn_groups(const I * acc, I * out) {
        for (int b = 0; b < 2; ++b) {
            out[b] = map<I>([&](int i) { return acc[i / 4].x[4 * b + i % 4]; });
        }
    }

    static void in_register(I &) {}
    static void istore(void * p, const I & a) { memcpy(p, &a, sizeof(a)); }
    static I iset1(int x) { return map<I>([&](int) { return x; }); }
    static I idup4(const char * p) { return iset1(copy<int32_t>(p)); }
    static I iadd(const I & a, const I & b) { return map<I>([&](int i) { return a.x[i] + b.x[i]; }); }
    static I idiff(const I & a, const I & b) { return map<I>([&](int i) { return a.x[i] - b.x[i]; }); }
    static I imax(const I & a, const I & b) { return map<I>([&](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; }); }
    static float sum(const F & a) {
        float lanes[4];
        for (int i = 0; i < 4; ++i) {
            lanes[i] = a.x[i] + a.x[i + 4];
        }
        return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
    }
    template <class Op>
    static I fold4(const I & a, const I & b, const I & c, const I & d, Op op) {
        const I * in[4] = {&a, &b, &c, &d};
        I x[8];  // transposed
        for (int j = 0; j < 8; ++j) {
            x[j] = map<I>([&](int i) { return in[i % 4]->x[j]; });
        }
        return op(op(op(x[0], x[2]), op(x[1], x[3])), op(op(x[4], x[6]), op(x[5], x[7])));
    }
    static I iprefix(const I & a) {
        int n = 0;
        return map<I>([&](int i) { return n += a.x[i]; });
    }
    static I ilast(const I & a) { return iset1(a.x[7]); }
    static unsigned lanes_differ(const I & a, const I & b) { return bits([&](int i) { return a.x[i] != b.x[i]; }); }
    static I lanes_of(const I & a, const I & b, unsigned bits) { return map<I>([&](int i) { return bits >> i & 1 ? b.x[i] : a.x[i]; }); }
    static int append(int32_t * to, const I & a, unsigned bits) {
        int n = 0;
        for (int i = 0; i < 8; ++i) {
            if (bits >> i & 1) {
                to[n++] = a.x[i];
            }
        }
        return n;
    }
    static I icount(int first) { return map<I>([&](int i) { return first + i; }); }
    static I select(const I & mask, const I & a, const I & b) {
        return map<I>([&](int i) { return (mask.x[i] & a.x[i]) | (~mask.x[i] & b.x[i]); });
    }
    static F as_float(const I & a) { return copy<F>(&a); }
    static I as_int(const F & a) { return copy<I>(&a); }
    static I to_int(const F & a) {
        return map<I>([&](int i) {
            // Beyond 2^22 the trick of round() would lose the last bits, and from 2^23 on there is nothing to round.
            const float x = a.x[i];
            return static_cast<int32_t>(x < 4194304.0f && x > -4194304.0f ? (x + 12582912.0f) - 12582912.0f : rintf(x));
        });
    }
    static F where_positive(const F & x, const F & a, const F & b) { return map([&](int i) { return x.x[i] > 0.0f ? a.x[i] : b.x[i]; }); }
    static void store_low_bytes(void * p, const I & a) {
        uint8_t b[8];
        for (int i = 0; i < 8; ++i) {
            b[i] = static_cast<uint8_t>(a.x[i]);
        }
        memcpy(p, b, sizeof(b));
    }
    static void store_upper_halves(void * p, const I & a, const I & b) {
        uint16_t halves[16];
        for (int i = 0; i < 8; ++i) {
            halves[i] = static_cast<uint16_t>(static_cast<uint32_t>(a.x[i]) >> 16);
            halves[i + 8] = static_cast<uint16_t>(static_cast<uint32_t>(b.x[i]) >> 16);
        }
        memcpy(p, halves, sizeof(halves));
    }
    static F load_upper_halves(const void * p) {
        uint16_t halves[8];
        memcpy(halves, p, sizeof(halves));
        return as_float(map<I>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(halves[i]) << 16); }));
    }
    template <int N>
    static I right(const I & a) { return map<I>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.x[i]) >> N); }); }
    static I iand(const I & a, const I & b) { return map<I>([&](int i) { return a.x[i] & b.x[i]; }); }
    static constexpr int kCodeDots = 1 << 20, kCodeChains = 1;
    static I code_dot(const I & acc, const I & codes, const I & q) {
        // 16-bit products of the even and the odd bytes, which compilers know instructions for; codes are positive
        int16_t c[16], f[16], odd_c[16], odd_f[16];
        memcpy(c, &codes, sizeof(c));
        memcpy(f, &q, sizeof(f));
        for (int i = 0; i < 16; ++i) {
            odd_c[i] = static_cast<int16_t>(c[i] >> 8);
            odd_f[i] = static_cast<int16_t>(f[i] >> 8);
            c[i] = static_cast<int16_t>(c[i] & 0xff);
            f[i] = static_cast<int16_t>(static_cast<int16_t>(static_cast<uint16_t>(f[i]) << 8) >> 8);
        }
        int16_t sums[16];
        for (int i = 0; i < 16; ++i) {
            sums[i] = static_cast<int16_t>(c[i] * f[i] + odd_c[i] * odd_f[i]);
        }
        return map<I>([&](int i) { return acc.x[i] + sums[2 * i] + sums[2 * i + 1]; });
    }
    static I code_sums(const I & total, const I & acc) { return map<I>([&](int i) { return total.x[i] + acc.x[i]; }); }
    static I dot4_stored(const I & acc, const I & k, const I & q) {
        return dot4(acc, map<I>([&](int i) { return k.x[i] ^ static_cast<int32_t>(0x80808080u); }), q);
    }
    static I scale_bytes(const I & a, const I & lo, const I & hi) {
        uint8_t u[32];
        int16_t first[16], last[16];
        int8_t out[32];
        memcpy(u, &a, sizeof(u));
        memcpy(first, &lo, sizeof(first));
        memcpy(last, &hi, sizeof(last));
        for (int i = 0; i < 32; ++i) {
            const int factor = i % 16 < 8 ? first[i / 16 * 8 + i % 8] : last[i / 16 * 8 + i % 8];
            out[i] = static_cast<int8_t>((u[i] * factor + 16384) >> 15);
        }
        return iload(out);
    }
    static F dup_f16(const char * p) { return set1(widened(copy<uint16_t>(p))); }

    template <int N>
    static I left(const I & a) { return map<I>([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(a.x[i]) << N); }); }
    static bool any_above(const F & a, const F & b) { return bits([&](int i) { return a.x[i] > b.x[i]; }) != 0; }
    static F where_bits(const I & a, const I & bits, const F & yes, const F & no) {
        return map([&](int i) { return (a.x[i] & bits.x[i]) != 0 ? yes.x[i] : no.x[i]; });
    }
    static void transpose(F (&x)[8]) {
        F rows[8];
        for (int i = 0; i < 8; ++i) {
            rows[i] = map([&](int j) { return x[j].x[i]; });
        }
        memcpy(x, rows, sizeof(rows));
    }
};

}  // namespace
}  // namespace edgekv
