// Brings queries into the form that a scan takes.
#pragma once

#include <math.h>
#include <string.h>

#include "kernels/decode/attend_softmax.h"
#include "kernels/sketch/sketch_internal.h"

namespace edgekv {
namespace {

inline size_t query_bytes(int padded) { return kQueryOffset + static_cast<size_t>(padded) * 3; }

inline SketchQueryHeader query_header(const char * prepared) {
    SketchQueryHeader header;
    memcpy(&header, prepared, sizeof(header));
    return header;
}

inline const char * query_of(const SketchQuery & query, int token, int head) {
    return query.q + static_cast<size_t>(token) * query.stride_token + static_cast<size_t>(head) * query.stride_head;
}

inline void prepare_one(int head_dim, int padded, const char * src, float scale, char * to) {
    alignas(64) float q[kMaxHeadDim];
    F top = Simd::zero();
    for (int i = 0; i < head_dim; i += kLanes) {
        const F x = Simd::mul(Simd::load_some(src + i * 4, head_dim - i), Simd::set1(scale));
        Simd::store(q + i, x);
        top = Simd::max(top, Simd::max(x, Simd::sub(Simd::zero(), x)));
    }
    const float amax = Simd::reduce_max(top);
    const float inverse = amax > 1e-30f ? kFineMax / amax : 0.0f;
    const F to_fine = Simd::set1(inverse), to_coarse = Simd::set1(inverse * (static_cast<float>(kCoarseMax) / kFineMax));
    alignas(64) int32_t fine[kMaxHeadDim], coarse[kMaxHeadDim];
    memset(fine, 0, static_cast<size_t>(padded) * sizeof(int32_t));
    memset(coarse, 0, static_cast<size_t>(padded) * sizeof(int32_t));
    for (int i = 0; i < head_dim; i += kLanes) {
        Simd::istore(fine + i, Simd::to_int(Simd::mul(Simd::load(q + i), to_fine)));
        Simd::istore(coarse + i, Simd::to_int(Simd::mul(Simd::load(q + i), to_coarse)));
    }

    int16_t words[kMaxHeadDim];
    int8_t bytes[kMaxHeadDim];
    int sum = 0;
    for (int i = 0; i < padded; ++i) {
        words[(i % 16 < 8 ? 0 : padded / 2) + i / 16 * 8 + i % 8] = static_cast<int16_t>(fine[i]);
        bytes[i] = static_cast<int8_t>(coarse[i]);
        sum += coarse[i];
    }
    const SketchQueryHeader header{amax / kFineMax, amax / kCoarseMax, 128 * sum, 0.0f};
    memcpy(to, &header, sizeof(header));
    memcpy(to + kQueryOffset, words, 2 * static_cast<size_t>(padded));
    memcpy(to + kQueryOffset + 2 * padded, bytes, static_cast<size_t>(padded));
}

inline void prepare(int head_dim, int padded, const SketchQuery & query, char * prepared) {
    for (int i = 0; i < query.n_tokens * query.group; ++i) {
        prepare_one(head_dim, padded, query_of(query, i / query.group, i % query.group), query.scale,
                    prepared + static_cast<size_t>(i) * query_bytes(padded));
    }
}

}  // namespace
}  // namespace edgekv
