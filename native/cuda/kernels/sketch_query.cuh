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

// Query rows in shared memory, one behind the other. The channels are those of the codes: a multiple of 32, the last ones zeros.
struct ScanRows {
    char * first;
    int n_quads;

    static EDGEKV_HOST_AND_DEVICE constexpr int bytes_of(int n_quads) {
        return static_cast<int>(sizeof(QueryHeader)) + n_quads * static_cast<int>(sizeof(QueryQuad) + sizeof(uint32_t));
    }
    __device__ inline char * row(int r) const { return first + r * bytes_of(n_quads); }
    __device__ inline QueryHeader & header(int r) const { return *reinterpret_cast<QueryHeader *>(row(r)); }
    __device__ inline QueryQuad * quads(int r) const { return reinterpret_cast<QueryQuad *>(row(r) + sizeof(QueryHeader)); }
    __device__ inline uint32_t * coarse(int r) const { return reinterpret_cast<uint32_t *>(quads(r) + n_quads); }
};

// One warp calls it. The numbers equal those of the host's sketch_query_prepare().
__device__ inline void prepare_row(const float * q, int dim, float scale, const ScanRows & rows, int r, int lane) {
    float top = 0.0f;
    for (int i = lane; i < dim; i += kWarp) {
        top = fmaxf(top, fabsf(__fmul_rn(q[i], scale)));
    }
    const float amax = most_of_warp(top);
    const float inverse = amax > 1e-30f ? __fdiv_rn(static_cast<float>(kFineMax), amax) : 0.0f;
    const float to_coarse = __fmul_rn(inverse, static_cast<float>(kCoarseMax) / kFineMax);
    for (int quad = lane; quad < rows.n_quads; quad += kWarp) {
        QueryQuad out = {};
        uint32_t bytes = 0;
        for (int i = 0; i < 4 && quad < dim / 4; ++i) {
            const float x = __fmul_rn(q[4 * quad + i], scale);
            out.x[i] = 2 * __float2int_rn(__fmul_rn(x, inverse));
            bytes |= (static_cast<uint32_t>(__float2int_rn(__fmul_rn(x, to_coarse))) & 0xffu) << 8 * i;
        }
        rows.quads(r)[quad] = out;
        rows.coarse(r)[quad] = bytes;
    }
    if (lane == 0) {
        rows.header(r) = {__fdiv_rn(amax, static_cast<float>(kFineMax)), __fdiv_rn(amax, static_cast<float>(kCoarseMax)), {0.0f, 0.0f}};
    }
}

}  // namespace
}  // namespace edgekv::gpu
