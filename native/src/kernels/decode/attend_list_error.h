// The error of a sampled list's output, estimated from the rows themselves.
#pragma once

#include <math.h>

#include "kernels/decode/attend_lists.h"

namespace edgekv {
namespace {

// The error of query head g of a list, as AttendProblem says. Its tiles begin at `first`; its softmax has the maximum `max` and the
// sum 1 / `inverse`.
inline float list_error(const AttendProblem & p, const AttendPlan & plan, char * workspace, const RowList & list, int64_t first, int g, float max,
                        float inverse) {
    const int dim = attend_v_dim(p);
    const int query_head = list.head * plan.group + g;
    const char * out = p.out + static_cast<size_t>(list.token) * p.out_stride_token + static_cast<size_t>(query_head) * p.out_stride_head;
    F length = Simd::zero();
    for (int d = 0; d < dim; d += kLanes) {
        const F x = load_floats<kAny>(out, d, dim);
        length = Simd::fma(x, x, length);
    }
    Tiles at(p);
    const char *k[kTileCells], *v[kTileCells];
    double variance = 0.0;
    for (int i = 0; i < list.n_tiles; ++i) {
        at.go_to(first + i);
        find_rows(p, at, k, v);
        const TilePart part = part_of(plan, workspace, first + i);
        const float factor = expf(part.max[g] - max) * inverse;
        const int n = at.n_here();
        for (int c = 0; c < n; ++c) {
            const float weight = list.weights[i * kTileCells + c];
            if (weight <= 1.0f) {
                continue;
            }
            const float share = part.weights[g * kTileCells + c] * factor;
            F apart = Simd::zero();
            for (int d = 0; d < dim; d += kLanes) {
                const F x = Simd::sub(load_channels<false>(p.v_type, v[c], d, dim), load_floats<kAny>(out, d, dim));
                apart = Simd::fma(x, x, apart);
            }
            variance += static_cast<double>((1.0f - 1.0f / weight) * share * share * Simd::sum(apart));
        }
    }
    const float norm = Simd::sum(length);
    return norm > 0.0f ? sqrtf(static_cast<float>(variance) / norm) : 0.0f;
}

}  // namespace
}  // namespace edgekv
