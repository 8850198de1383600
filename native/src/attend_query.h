// The query rows in the form that the products of a tile take them.
#pragma once

#include <math.h>
#include <string.h>

#include "attend_qkpv.h"

namespace edgekv {
namespace {

// Quantises a query row by block to int8 (scale = amax / 127, round to nearest even), in the order that dot4() meets it.
template <int D>
void quantise_query(const float * q, float scale, char * row) {
    int8_t values[q8_vectors<D>() * sizeof(I)] = {};
    float * scales = reinterpret_cast<float *>(row + q8_scales_offset<D>());
    int32_t * excess = reinterpret_cast<int32_t *>(scales + D / kBlock);
    for (int b = 0; b < D / kBlock; ++b) {
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
        excess[b] = 128 * sum;
    }
    for (size_t v = 0; v < q8_vectors<D>(); ++v) {
        for (int j = 0; j < 4; ++j) {
            for (int lane = 0; lane < kLanes; ++lane) {
                const int dword = lane / 4 * 4 + j;  // the 4 lanes of a 128-bit group are 4 cells
                memcpy(row + ((v * 4 + j) * kLanes + lane) * 4, values + (v * kLanes + dword) * 4, 4);
            }
        }
    }
}

template <int D>
void prepare_query(const AttendProblem & p, int token, int head, char * row) {
    const char * src = p.q + static_cast<size_t>(token) * p.q_stride_token + static_cast<size_t>(head) * p.q_stride_head;
    alignas(64) float q[D];
    memcpy(q, src, sizeof(q));
    if constexpr (D % kBlock == 0) {
        if (p.k_type == CellType::q8_0) {
            quantise_query<D>(q, p.scale, row);
            return;
        }
    }
    for (int i = 0; i < D; i += kLanes) {
        Simd::store(row + i * 4, Simd::mul(Simd::load(q + i), Simd::set1(p.scale)));
    }
}

}  // namespace
}  // namespace edgekv
