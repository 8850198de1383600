// A head's query rows in shared memory, in the form that a scan takes.
#pragma once

#include "cuda/gpu.h"
#include "kernels/sketch/sketch_internal.h"

namespace edgekv::gpu {
namespace {

// A query row in shared memory: a header, a QueryQuad for each four channels, then the quads' coarse i8.
struct alignas(16) QueryHeader {
    float fine;    // as in SketchQueryHeader
    float coarse;
    float unused[2];
};
struct alignas(16) QueryQuad {
    int32_t x[4];  // twice the i16 of each channel
};

__device__ inline float warp_top(float x) {
    for (int step = kWarp / 2; step > 0; step /= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    }
    return x;
}

// One warp calls it. The numbers equal those of the host's sketch_query_prepare().
template <int D>
__device__ inline void prepare_row(const float * q, float scale, char * row, int lane) {
    float top = 0.0f;
    for (int i = lane; i < D; i += kWarp) {
        top = fmaxf(top, fabsf(__fmul_rn(q[i], scale)));
    }
    const float amax = warp_top(top);
    const float inverse = amax > 1e-30f ? __fdiv_rn(static_cast<float>(kFineMax), amax) : 0.0f;
    const float to_coarse = __fmul_rn(inverse, static_cast<float>(kCoarseMax) / kFineMax);
    QueryQuad * const quads = reinterpret_cast<QueryQuad *>(row + sizeof(QueryHeader));
    uint32_t * const coarse = reinterpret_cast<uint32_t *>(quads + D / 4);
    for (int quad = lane; quad < D / 4; quad += kWarp) {
        QueryQuad out = {};
        uint32_t bytes = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float x = __fmul_rn(q[4 * quad + i], scale);
            out.x[i] = 2 * __float2int_rn(__fmul_rn(x, inverse));
            bytes |= (static_cast<uint32_t>(__float2int_rn(__fmul_rn(x, to_coarse))) & 0xffu) << 8 * i;
        }
        quads[quad] = out;
        coarse[quad] = bytes;
    }
    if (lane == 0) {
        *reinterpret_cast<QueryHeader *>(row) = {__fdiv_rn(amax, static_cast<float>(kFineMax)),
                                                 __fdiv_rn(amax, static_cast<float>(kCoarseMax)), {0.0f, 0.0f}};
    }
}

// The rows of one warp, one after the other in shared memory.
template <int D>
struct ScanRows {
    static constexpr int kQuads = D / 4;
    static constexpr int kBytes = (static_cast<int>(sizeof(QueryHeader)) + kQuads * static_cast<int>(sizeof(QueryQuad) + 4) + 15) / 16 * 16;
    const char * first;

    __device__ inline QueryHeader header(int r) const { return *reinterpret_cast<const QueryHeader *>(first + r * kBytes); }
    __device__ inline QueryQuad quad(int r, int i) const {
        return reinterpret_cast<const QueryQuad *>(first + r * kBytes + sizeof(QueryHeader))[i];
    }
    __device__ inline int coarse(int r, int i) const {
        return reinterpret_cast<const int *>(first + r * kBytes + sizeof(QueryHeader) + kQuads * sizeof(QueryQuad))[i];
    }
};

}  // namespace
}  // namespace edgekv::gpu
