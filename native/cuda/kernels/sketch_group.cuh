// The shares of one group for some query rows: a warp's work in a scan, two cells per lane.
#pragma once

#include "cuda/kernels/sketch_query.cuh"

namespace edgekv::gpu {
namespace {

constexpr int kCellsOfLane = kGroupCells / kWarp;

__device__ inline float scan_softcap(float x, float cap) {
    const float e = __expf(fminf(fmaxf(x * (2.0f / cap), -30.0f), 30.0f));
    return cap * __fdividef(e - 1.0f, e + 1.0f);
}

// exp(x) for x <= 0 as in the CPU's scan: 2^n * (1 + f) for 2^(n + f), up to 6.2 % too large.
__device__ inline uint32_t exp_bits(float x) {
    return static_cast<uint32_t>(__float2int_rn(fmaxf(fmaf(x, 1.44269504f * 0x1p23f, 127.0f * 0x1p23f), 0.0f)));
}

// Writes a warp's result for one group and one query row from the logits of its cells; all lanes call it.
__device__ inline void leave_shares(const float (&logit)[kCellsOfLane], uint64_t visible, int lane, uint16_t * cells, float * top_of,
                                    float * sum_of) {
    bool seen[kCellsOfLane];
    float top = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int j = 0; j < kCellsOfLane; ++j) {
        seen[j] = (visible >> (lane + j * kWarp) & 1) != 0;
        top = seen[j] ? fmaxf(top, logit[j]) : top;
    }
    top = most_of_warp(top);
#pragma unroll
    for (int j = 0; j < kCellsOfLane; ++j) {
        const uint32_t bits = seen[j] ? exp_bits(logit[j] - top) : 0;
        sum += __uint_as_float(bits);
        if (visible != 0) {
            cells[lane + j * kWarp] = static_cast<uint16_t>(bits >> 16);
        }
    }
    sum = sum_of_warp(sum);
    if (lane == 0) {
        *top_of = top;
        *sum_of = sum;
    }
}

// Four channels' doubled i16 times a step, divided by 2^16 and rounded, as i8.
__device__ inline int scale_bytes(uint32_t step, const QueryQuad & q) {
    uint32_t p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        p[i] = static_cast<uint32_t>(static_cast<int32_t>(step >> 8 * i & 0xffu) * q.x[i] + 32768);
    }
    return static_cast<int>(__byte_perm(__byte_perm(p[0], p[1], 0x0062), __byte_perm(p[2], p[3], 0x0062), 0x5410));
}

// NR rows whose queries and factors lie in shared memory. kFresh: this block has written the sketch in this launch, so that caches of what is only read
// may not have it.
template <int NR, bool kFresh = false>
struct GroupScan {
    struct alignas(16) Factors {
        int x[8][NR];  // query times step, as i8, of 32 channels
    };

    template <class T>
    __device__ static inline T load(const T * p) {
        return kFresh ? *p : __ldg(p);
    }

    // Computes a group's factors, and the common part of its cells' logits.
    __device__ static inline void prepare(const char * params, int padded, const ScanRows & rows, int first, int lane, Factors * factors,
                                          float (&slope)[NR], float (&base)[NR]) {
        const float * const scales = reinterpret_cast<const float *>(params);
        const uint32_t * const low = reinterpret_cast<const uint32_t *>(params + kParamHeader);
        const uint32_t * const step = low + padded / 4;
        int lows[NR] = {};
        for (int quad = lane; quad < rows.n_quads; quad += kWarp) {
            const uint32_t l = load(low + quad) ^ 0x80808080u, s = load(step + quad);
#pragma unroll
            for (int r = 0; r < NR; ++r) {
                lows[r] = __dp4a(static_cast<int>(l), static_cast<int>(rows.coarse(first + r)[quad]), lows[r]);
                factors[quad / 8].x[quad % 8][r] = scale_bytes(s, rows.quads(first + r)[quad]);
            }
        }
        const float step_scale = load(scales), low_scale = load(scales + 1);
#pragma unroll
        for (int r = 0; r < NR; ++r) {
            const QueryHeader header = rows.header(first + r);
            lows[r] = sum_of_warp(lows[r]);
            slope[r] = step_scale * (header.fine * 32768.0f);
            base[r] = static_cast<float>(lows[r]) * (low_scale * header.coarse);
        }
        __syncwarp();
    }

    // Computes the dot products of a lane's cells from the group's codes.
    __device__ static inline void multiply(const char * codes, int n_chunks, int lane, const Factors * factors, int (&dots)[NR][kCellsOfLane]) {
#pragma unroll 1
        for (int chunk = 0; chunk < n_chunks; ++chunk) {
            uint32_t quads[kCellsOfLane][8];
#pragma unroll
            for (int j = 0; j < kCellsOfLane; ++j) {
                const int cell = lane + j * kWarp;
                const uint32_t * const at = reinterpret_cast<const uint32_t *>(
                    codes + (cell / kVectorCells * (3 * n_chunks) + 3 * chunk) * kVectorBytes + cell % kVectorCells * 4);
                const uint32_t a = load(at), b = load(at + kVectorCells), c = load(at + 2 * kVectorCells);
                quads[j][0] = a & 0x07070707u;
                quads[j][1] = a >> 3 & 0x07070707u;
                quads[j][2] = b & 0x07070707u;
                quads[j][3] = b >> 3 & 0x07070707u;
                quads[j][4] = c & 0x07070707u;
                quads[j][5] = c >> 3 & 0x07070707u;
                quads[j][6] = (a >> 6 & 0x03030303u) | (b >> 4 & 0x04040404u);
                quads[j][7] = (c >> 6 & 0x03030303u) | (b >> 5 & 0x04040404u);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) {
#pragma unroll
                for (int r = 0; r < NR; ++r) {
                    const int factor = factors[chunk].x[i][r];
#pragma unroll
                    for (int j = 0; j < kCellsOfLane; ++j) {
                        dots[r][j] = __dp4a(static_cast<int>(quads[j][i]), factor, dots[r][j]);
                    }
                }
            }
        }
    }
};

}  // namespace
}  // namespace edgekv::gpu
