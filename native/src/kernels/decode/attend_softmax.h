// The online softmax of a tile, over the Simd of the translation unit that includes this.
#pragma once

#include <math.h>
#include <string.h>

#include "kernels/decode/attend_qkpv.h"

namespace edgekv {
namespace {

// The bits of a vector of cells among those of a group of 64.
inline unsigned lane_bits(uint64_t cells, int vector) {
    return static_cast<unsigned>(cells >> (vector * kLanes)) & ((1u << (kLanes - 1) << 1) - 1);
}

// The mask of cells [first, first + n) for one token, -inf up to `padded`.
inline void load_bias(const AttendProblem & p, int token, int first, int n, int padded, float * bias) {
    const int whole = n / kLanes * kLanes;
    const char * mask = p.mask + static_cast<size_t>(token) * p.mask_stride_token;
    if (p.mask_type == MaskType::f16) {
        mask += static_cast<size_t>(first) * 2;
        for (int c = 0; c < whole; c += kLanes) {
            Simd::store(bias + c, Simd::load_f16(mask + c * 2));
        }
        if (whole < n) {
            alignas(64) char tail[kLanes * 2] = {};
            alignas(64) float values[kLanes];
            memcpy(tail, mask + whole * 2, static_cast<size_t>(n - whole) * 2);
            Simd::store(values, Simd::load_f16(tail));
            memcpy(bias + whole, values, static_cast<size_t>(n - whole) * sizeof(float));
        }
    } else if (p.mask_type == MaskType::f32) {
        memcpy(bias, mask + static_cast<size_t>(first) * 4, static_cast<size_t>(n) * 4);
    } else {
        memset(bias, 0, static_cast<size_t>(n) * 4);
    }
    for (int c = n; c < padded; ++c) {
        bias[c] = -INFINITY;
    }
}

// The state of one query across tiles, as it lies in the workspace.
struct QueryState {
    float * max;
    float * sum;
    float * strip_sum;  // of this tile's strips, kTileStrips floats, or null if mass is not observed
    float * strip_max;
};

// Turns the scores of `n_queries` queries into weights relative to the running max, and sets factor[r] to the factor that the query's earlier
// weights need.
inline void softmax_tile(int n_queries, int n_strips, float softcap, float (*scores)[kTileCells], const float * const * bias,
                         const float * slope, const QueryState * state, float * factor) {
    constexpr int queries_per_join = kLanes / 4;
    constexpr int per_strip = kStripCells / kLanes;
    alignas(64) float strip_sums[(Simd::kQueries + queries_per_join - 1) / queries_per_join * queries_per_join][kTileStrips];
    F part[queries_per_join];
    for (int r = 0; r < n_queries; ++r) {
        const int cells = n_strips * kStripCells;
        F top = Simd::set1(-INFINITY);
        for (int c = 0; c < cells; c += kLanes) {
            F s = Simd::load(scores[r] + c);
            if (softcap != 0.0f) {
                s = vector_softcap(s, softcap);
            }
            s = Simd::add_bias(s, Simd::mul(Simd::load(bias[r] + c), Simd::set1(slope[r])));
            Simd::store(scores[r] + c, s);
            top = Simd::max(top, s);
        }
        const float old_max = *state[r].max;
        const float tile_max = Simd::reduce_max(top);
        const float new_max = tile_max > old_max ? tile_max : old_max;
        factor[r] = new_max > old_max ? expf(old_max - new_max) : 1.0f;
        *state[r].max = new_max;

        const F shift = Simd::set1(new_max == -INFINITY ? 0.0f : new_max);  // nothing seen yet: exp(-inf - 0) = 0
        F sums[kTileStrips];
        for (int s = 0; s < kTileStrips; ++s) {
            sums[s] = Simd::zero();
        }
        for (int s = 0; s < n_strips; ++s) {
            for (int i = 0; i < per_strip; ++i) {
                float * x = scores[r] + s * kStripCells + i * kLanes;
                const F p = vector_exp(Simd::sub(Simd::load(x), shift));
                Simd::store(x, p);
                sums[s] = i == 0 ? p : Simd::add(sums[s], p);
            }
        }
        part[r % queries_per_join] = Simd::quad(sums[0], sums[1], sums[2], sums[3]);
        if (r % queries_per_join == queries_per_join - 1 || r == n_queries - 1) {
            for (int i = r % queries_per_join + 1; i < queries_per_join; ++i) {
                part[i] = Simd::zero();
            }
            Simd::store(strip_sums[r / queries_per_join * queries_per_join], Simd::join(part));
        }
    }
    for (int r = 0; r < n_queries; ++r) {
        const float * s = strip_sums[r];
        *state[r].sum = *state[r].sum * factor[r] + ((s[0] + s[1]) + (s[2] + s[3]));
        if (state[r].strip_sum != nullptr) {
            const float top = *state[r].max;
            const float tops[kTileStrips] = {top, top, top, top};
            if (n_strips == kTileStrips) {  // sizes the compiler knows become one store each
                memcpy(state[r].strip_sum, s, sizeof(tops));
                memcpy(state[r].strip_max, tops, sizeof(tops));
            } else {
                memcpy(state[r].strip_sum, s, static_cast<size_t>(n_strips) * sizeof(float));
                memcpy(state[r].strip_max, tops, static_cast<size_t>(n_strips) * sizeof(float));
            }
        }
    }
}

}  // namespace
}  // namespace edgekv
