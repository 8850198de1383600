// The queries in the form that a tile's products take.
#pragma once

#include <math.h>
#include <string.h>

#include "kernels/decode/attend_q4.h"

namespace edgekv {
namespace {

// Quantises a query by block to int8 (scale = amax / 127, round to nearest even), in the order that the products with keys of the type
// meet it.
template <int D>
void quantise_query(CellType type, const float * q, int head_dim, float scale, char * to) {
    const int dim = dim_of<D>(head_dim);
    const bool bytes = type == CellType::q8_0;
    int8_t values[(most_dim<D>() + 127) / 128 * 128] = {};
    float * scales = reinterpret_cast<float *>(to + (bytes ? q8_scales_offset(dim) : q4_scales_offset<D>(dim)));
    int32_t * excess = reinterpret_cast<int32_t *>(scales + dim / kBlock);
    for (int b = 0; b < dim / kBlock; ++b) {
        float amax = 0.0f;
        for (int i = 0; i < kBlock; ++i) {
            const float a = fabsf(q[b * kBlock + i]);
            amax = a > amax ? a : amax;
        }
        const float inverse = amax > 0.0f ? 127.0f / amax : 0.0f;
        int sum = 0;
        for (int i = 0; i < kBlock; ++i) {
            const int x = static_cast<int>(rintf(q[b * kBlock + i] * inverse));
            values[b * kBlock + i] = static_cast<int8_t>(x);
            sum += x;
        }
        scales[b] = amax / 127.0f * scale;
        excess[b] = (bytes ? 128 : 8) * sum;
    }
    for (int v = 0; !bytes && v < q4_vectors<D>(dim); ++v) {
        for (int j = 0; j < 8; ++j) {  // four dwords of the low halves, four of the high ones
            for (int b = 0; b < q4_blocks<D>(); ++b) {
                for (int cell = 0; cell < 4; ++cell) {
                    memcpy(to, values + (v * q4_blocks<D>() + b) * kBlock + 4 * j, 4);
                    to += 4;
                }
            }
        }
    }
    for (int v = 0; bytes && v < q8_vectors(dim); ++v) {
        for (int j = 0; j < 4; ++j) {
            for (int lane = 0; lane < kLanes; ++lane) {
                const int dword = lane / 4 * 4 + j;  // the 4 lanes of a 128-bit group are 4 cells
                memcpy(to + ((v * 4 + j) * kLanes + lane) * 4, values + (v * kLanes + dword) * 4, 4);
            }
        }
    }
}

template <int D>
void prepare_query(const AttendProblem & p, int token, int head, char * to) {
    const char * src = p.q + static_cast<size_t>(token) * p.q_stride_token + static_cast<size_t>(head) * p.q_stride_head;
    const int dim = dim_of<D>(p.head_dim);
    if constexpr (D % kBlock == 0) {
        if (in_blocks(p.k_type)) {
            alignas(64) float q[most_dim<D>()];
            memcpy(q, src, static_cast<size_t>(dim) * sizeof(float));
            quantise_query<D>(p.k_type, q, dim, p.scale, to);
            return;
        }
    }
    for (int i = 0; i < dim; i += kLanes) {
        Simd::store(to + i * 4, Simd::mul(load_floats<D>(src, i, dim), Simd::set1(p.scale)));
    }
}

}  // namespace
}  // namespace edgekv
