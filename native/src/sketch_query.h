// The query group in the form that a scan takes.
#pragma once

#include <math.h>
#include <string.h>

#include "attend_softmax.h"
#include "sketch_internal.h"

namespace edgekv {
namespace {

inline size_t row_bytes(int head_dim) { return kRowQ + static_cast<size_t>(head_dim) * 3; }

inline SketchRow row_header(const char * row) {
    SketchRow header;
    memcpy(&header, row, sizeof(header));
    return header;
}

inline void prepare_row(SketchKind kind, int head_dim, const char * src, float scale, char * row) {
    alignas(64) float q[256];
    F top = Simd::zero();
    for (int i = 0; i < head_dim; i += kLanes) {
        const F x = Simd::mul(Simd::load(src + i * 4), Simd::set1(scale));
        Simd::store(q + i, x);
        top = Simd::max(top, Simd::max(x, Simd::sub(Simd::zero(), x)));
    }
    const float amax = Simd::reduce_max(top);
    const float inverse = amax > 1e-30f ? kFineMax / amax : 0.0f;
    const F to_fine = Simd::set1(inverse), to_coarse = Simd::set1(inverse * (static_cast<float>(kCoarseMax) / kFineMax));
    alignas(64) int32_t fine[256], coarse[256];
    for (int i = 0; i < head_dim; i += kLanes) {
        Simd::istore(fine + i, Simd::to_int(Simd::mul(Simd::load(q + i), to_fine)));
        Simd::istore(coarse + i, Simd::to_int(Simd::mul(Simd::load(q + i), to_coarse)));
    }

    const bool box = kind == SketchKind::box;
    int16_t words[256];
    uint8_t bytes[256];
    int sum = 0;
    for (int i = 0; i < head_dim; ++i) {
        words[i] = static_cast<int16_t>(fine[i]);
        bytes[i] = static_cast<uint8_t>(box ? (fine[i] >= 0 ? 0xff : 0) : coarse[i]);
        sum += box ? fine[i] : coarse[i];
    }
    SketchRow header{amax / kFineMax, amax / kCoarseMax, 128 * sum, 0.0f};
    // half a unit of rounding per channel (all of a query too small to be told from zero), and what float arithmetic loses
    header.slack = inverse > 0.0f ? header.fine * 0.501f + amax * 0x1p-20f : amax;
    memcpy(row, &header, sizeof(header));
    memcpy(row + kRowQ, words, 2 * static_cast<size_t>(head_dim));
    memcpy(row + kRowQ + 2 * head_dim, bytes, static_cast<size_t>(head_dim));
}

inline void prepare(const Sketch & sketch, const SketchQuery & query, char * prepared) {
    for (int g = 0; g < query.group; ++g) {
        prepare_row(sketch.kind, sketch.head_dim, query.q + static_cast<size_t>(g) * query.stride_head, query.scale,
                    prepared + static_cast<size_t>(g) * row_bytes(sketch.head_dim));
    }
}

}  // namespace
}  // namespace edgekv
