// The estimates of one strip for some rows of queries: a lane's work in a scan.
#pragma once

#include "sketch_query.cuh"

namespace edgekv::gpu {
namespace {

__device__ inline uint32_t vector_at(const char * block, int vector) {
    return __ldg(reinterpret_cast<const uint32_t *>(block + vector * kVectorBytes));
}

// ln x as the CPU's vector_log()
__device__ inline float scan_log(float x) {
    const float y = fmaf(static_cast<float>(__float_as_int(x)), 0x1p-23f, -127.0f);
    const float f = y - rintf(y - 0.5f);
    float p = fmaf(0.0821306446f, f, -0.239058182f);
    p = fmaf(p, f, 0.438725733f);
    return (y + p * (f * (1.0f - f))) * 0.693147181f;
}

__device__ inline float scan_softcap(float x, float cap) {
    const float e = __expf(fminf(fmaxf(x * (2.0f / cap), -30.0f), 30.0f));
    return cap * __fdividef(e - 1.0f, e + 1.0f);
}

// Twice the i16 times a step, / 2^16 and rounded, of four channels: as i8.
__device__ inline int scale_bytes(uint32_t step, const QueryQuad & q) {
    uint32_t p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        p[i] = static_cast<uint32_t>(static_cast<int32_t>(step >> 8 * i & 0xffu) * q.x[i] + 32768);
    }
    return static_cast<int>(__byte_perm(__byte_perm(p[0], p[1], 0x0062), __byte_perm(p[2], p[3], 0x0062), 0x5410));
}

// ---- codes -------------------------------------------------------------------------------------------------------------------

constexpr int kCells = kSketchStripCells;

struct Dots {
    int x[kCells];
};

// On its own, as few models have a softcap.
__device__ __attribute__((noinline)) float capped_log_sum(Dots dots, float slope, float base, float share, float softcap) {
    float logit[kCells], top = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int c = 0; c < kCells; ++c) {
        logit[c] = scan_softcap(fmaf(static_cast<float>(dots.x[c]), slope, base), softcap);
        top = fmaxf(top, logit[c]);
    }
#pragma unroll
    for (int c = 0; c < kCells; ++c) {
        sum += __expf(logit[c] - top);
    }
    return top + scan_log(sum * share);
}

// With the CPU's exponential: 2^n * (1 + f) for 2^(n + f). Here an integer becomes a float, and a float an integer, by the
// addition of 1.5 * 2^23, which takes fewer cycles than a conversion; of the exponential's 23 bits after the point that leaves
// 15.
__device__ inline float log_sum(const Dots & dots, float slope, float base, float share) {
    constexpr int kMagicBits = 0x4b400000;
    constexpr float kMagic = 12582912.0f;
    int top = dots.x[0];
#pragma unroll
    for (int c = 1; c < kCells; ++c) {
        top = max(top, dots.x[c]);
    }
    const float rate = slope * (1.44269504f * 0x1p15f);
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < kCells; ++c) {
        const float below = __int_as_float(dots.x[c] - top + kMagicBits) - kMagic;
        const float bits = fmaxf(fmaf(below, rate, 127.0f * 0x1p15f), 0.0f) + kMagic;
        sum += __uint_as_float((__float_as_uint(bits) << 8) - (static_cast<uint32_t>(kMagicBits) << 8));
    }
    return fmaf(static_cast<float>(top), slope, base) + (scan_log(sum * share) - 0.0298f);
}

template <int Bits, int D, int NR>
struct StripScan {
    static constexpr int kMask = Bits == 2 ? 0x03030303 : 0x01010101;
    static constexpr int kTogether = 4;  // quads: what one dword of 2-bit codes holds, or half of one of 1-bit codes
    static constexpr int kParams = 3;    // vectors
    static constexpr int kCodes = kParams + D / 2;
    static constexpr int kKeyVectors = (D * Bits + 31) / 32;

    // block: at the strip's lane
    __device__ static inline void run(const char * block, const ScanRows<D> & rows, float softcap, float * out) {
        const float step_scale = __uint_as_float(vector_at(block, 0));
        const float low_scale = __uint_as_float(vector_at(block, 1));
        const float share = __uint_as_float(vector_at(block, 2));
        Dots dots[NR] = {};
        int lows[NR] = {};
#pragma unroll 1
        for (int first = 0; first < D / 4; first += kTogether) {
            const char * const codes = block + (kCodes + first * Bits / 8) * kVectorBytes;
            const char * const params = block + (kParams + 2 * first) * kVectorBytes;
            uint32_t code[kCells], low[kTogether], step[kTogether];
#pragma unroll
            for (int c = 0; c < kCells; ++c) {
                code[c] = vector_at(codes, c * kKeyVectors);
            }
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                low[i] = vector_at(params, 2 * i);
                step[i] = vector_at(params, 2 * i + 1);
            }
            if (Bits == 1) {
#pragma unroll
                for (int c = 0; c < kCells; ++c) {
                    code[c] >>= first & 4;
                }
            }
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                int factor[NR];
#pragma unroll
                for (int r = 0; r < NR; ++r) {
                    lows[r] = __dp4a(static_cast<int>(low[i] ^ 0x80808080u), rows.coarse(r, first + i), lows[r]);
                    factor[r] = scale_bytes(step[i], rows.quad(r, first + i));
                }
#pragma unroll
                for (int c = 0; c < kCells; ++c) {
                    const int bits = static_cast<int>(code[c]) & kMask;
                    code[c] >>= Bits;
#pragma unroll
                    for (int r = 0; r < NR; ++r) {
                        dots[r].x[c] = __dp4a(bits, factor[r], dots[r].x[c]);
                    }
                }
            }
        }
#pragma unroll
        for (int r = 0; r < NR; ++r) {
            const QueryHeader header = rows.header(r);
            const float slope = step_scale * (header.fine * 32768.0f);
            const float base = static_cast<float>(lows[r]) * (low_scale * header.coarse);
            if (softcap == 0.0f) {
                out[r] = log_sum(dots[r], slope, base, share);
            } else {
                out[r] = capped_log_sum(dots[r], slope, base, share, softcap);
            }
            out[r] = share > 0.0f ? out[r] : -INFINITY;
        }
    }
};

// ---- boxes -------------------------------------------------------------------------------------------------------------------

template <int D, int NR>
struct StripScan<0, D, NR> {
    __device__ static inline void run(const char * block, const ScanRows<D> & rows, float softcap, float * out) {
        const float scale = __uint_as_float(vector_at(block, 0));
        const float reach = __uint_as_float(vector_at(block, 1));
        const char * const params = block + 2 * kVectorBytes;
        int high[NR] = {}, low[NR] = {};
#pragma unroll 4
        for (int quad = 0; quad < D / 4; ++quad) {
            const uint32_t least = vector_at(params, 2 * quad) ^ 0x80808080u;
            const uint32_t most = vector_at(params, 2 * quad + 1) ^ 0x80808080u;
#pragma unroll
            for (int r = 0; r < NR; ++r) {
                const QueryQuad q = rows.quad(r, quad);
                const uint32_t end = (static_cast<uint32_t>(q.x[2]) & most) | (~static_cast<uint32_t>(q.x[2]) & least);
                high[r] = __dp4a(static_cast<int>(end), q.x[0], high[r]);
                low[r] = __dp4a(static_cast<int>(end), q.x[1], low[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < NR; ++r) {
            const QueryHeader header = rows.header(r);
            float x = static_cast<float>(128 * high[r] + low[r]) * (scale * header.fine);
            x = fmaf(reach, header.slack, x);
            if (softcap != 0.0f) {
                x = scan_softcap(x, softcap) + softcap * 0x1p-18f;
            }
            out[r] = scale > 0.0f ? x : -INFINITY;
        }
    }
};

}  // namespace
}  // namespace edgekv::gpu
