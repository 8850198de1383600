// K and V as the cache stores them, rounded as ggml-cuda rounds: see store_device.h. A warp rounds 32 neighbouring values of a row at a time.
#pragma once

#include "kernels/layout.h"
#include "cuda/gpu.h"

namespace edgekv::gpu {
namespace {

// The card's fast division, which takes subnormal numbers as zero, as with fast maths. The emulated device rounds correctly.
#if defined(__CUDACC__)
__device__ inline float quotient(float a, float b) {
    float x;
    asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
    return x;
}

__device__ inline float by_minus_eighth(float a) {
    float x;
    asm("mul.ftz.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(-0.125f));
    return x;
}

__device__ inline float reciprocal(float a) {
    float x;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(a));
    return x;
}
#else
inline float without_subnormal(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
inline float quotient(float a, float b) { return without_subnormal(without_subnormal(a) / b); }
inline float by_minus_eighth(float a) { return without_subnormal(without_subnormal(a) * -0.125f); }
inline float reciprocal(float a) { return without_subnormal(1.0f / a); }
#endif

// Each lane has one value of the block.
__device__ inline void quantise_q4(float x, int lane, char * block) {
    const unsigned most = __ballot_sync(kAllLanes, fabsf(x) == most_of_warp(fabsf(x)));
    const float d = by_minus_eighth(__shfl_sync(kAllLanes, x, most != 0 ? __ffs(static_cast<int>(most)) - 1 : 0));
    const float inverse = d != 0.0f ? reciprocal(d) : 0.0f;
    const int code = min(15, static_cast<int>(fmaf(x, inverse, 8.5f)));
    const int upper = __shfl_xor_sync(kAllLanes, code, kQuantBlock / 2);
    if (lane < kQuantBlock / 2) {
        block[2 + lane] = static_cast<char>(code | upper << 4);
    }
    if (lane == 0) {
        *reinterpret_cast<__half *>(block) = __float2half_rn(d);
    }
}

__device__ inline void quantise_q8(float x, int lane, char * block) {
    const float amax = most_of_warp(fabsf(x));
    const float d = quotient(amax, 127.0f);
    const float inverse = d != 0.0f ? reciprocal(d) : 0.0f;
    block[2 + lane] = static_cast<char>(static_cast<int8_t>(roundf(__fmul_rn(x, inverse))));
    if (lane == 0) {
        *reinterpret_cast<__half *>(block) = __float2half_rn(d);
    }
}

// A lane has value `d` of a row; the warp's first lane a multiple of 32. What lies past the row's end is left out. All lanes call it.
__device__ inline void round_value(CellType type, float x, int d, int head_dim, char * row) {
    const int lane = d % kWarp;
    if (type == CellType::f16) {
        if (d < head_dim) {
            reinterpret_cast<__half *>(row)[d] = __float2half_rn(x);
        }
        return;
    }
    char * const block = row + d / kQuantBlock * block_bytes(type);
    type == CellType::q8_0 ? quantise_q8(x, lane, block) : quantise_q4(x, lane, block);
}

}  // namespace
}  // namespace edgekv::gpu
