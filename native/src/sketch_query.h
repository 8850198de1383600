// The query group in the form that a scan takes.
#pragma once

#include <math.h>
#include <string.h>

#include "attend_softmax.h"
#include "sketch_internal.h"

namespace edgekv {
namespace {

inline size_t row_bytes(SketchKind kind, int head_dim) {
    return kRowQ + static_cast<size_t>(head_dim) * (kind == SketchKind::box ? 3 : 2);
}

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
    const float inverse = amax > 1e-30f ? kQueryMax / amax : 0.0f;
    alignas(64) int32_t rounded[256];
    for (int i = 0; i < head_dim; i += kLanes) {
        Simd::istore(rounded + i, Simd::to_int(Simd::mul(Simd::load(q + i), Simd::set1(inverse))));
    }

    SketchRow header{amax / kQueryMax, 0, 0.0f, 0};
    int16_t whole[256];
    uint8_t positive[256];
    for (int i = 0; i < head_dim; ++i) {
        whole[i] = static_cast<int16_t>(rounded[i]);
        positive[i] = rounded[i] >= 0 ? 0xff : 0;
        header.excess += 128 * rounded[i];
    }
    // half a unit of rounding per channel (all of a query too small to be told from zero), and what float arithmetic loses
    header.slack = inverse > 0.0f ? header.unit * 0.501f + amax * 0x1p-20f : amax;
    memcpy(row, &header, sizeof(header));
    const size_t d = static_cast<size_t>(head_dim);
    memcpy(row + kRowQ, whole, 2 * d);
    if (kind == SketchKind::box) {
        memcpy(row + kRowQ + 2 * d, positive, d);
    }
}

inline void prepare(const Sketch & sketch, const SketchQuery & query, char * prepared) {
    for (int g = 0; g < query.group; ++g) {
        prepare_row(sketch.kind, sketch.head_dim, query.q + static_cast<size_t>(g) * query.stride_head, query.scale,
                    prepared + static_cast<size_t>(g) * row_bytes(sketch.kind, sketch.head_dim));
    }
}

}  // namespace
}  // namespace edgekv
