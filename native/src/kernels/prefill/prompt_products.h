// The two products of prompt attention, panel by panel, in single precision. prompt_bf16.h has others of the same form.
#pragma once

#include <string.h>

#include "kernels/decode/attend_softmax.h"
#include "kernels/prefill/prompt_internal.h"

namespace edgekv {
namespace {

// The cells of a block of K or V, not packed yet.
struct Cells {
    CellType type;
    const char * first;
    size_t stride;
    int head_dim;
    uint64_t wanted;  // other cells count as zeros
    int n_ahead;      // cells of the next block to prefetch during this one
    int row_bytes;

    bool has(int cell) const { return wanted >> cell & 1; }
    void fetch_ahead(int cell) const {
        if (cell < n_ahead) {
            const char * next = row(cell + kPromptCells);
            for (int i = 0; i < row_bytes; i += 64) {
                Simd::prefetch(next + i);
            }
        }
    }
    const char * row(int cell) const { return first + static_cast<size_t>(cell) * stride; }
};

// Packs floats [64][channels]; the padding after the head's channels may hold anything.
inline void widen(const Cells & cells, int channels, float * out) {
    for (int c = 0; c < kPromptCells; ++c) {
        cells.fetch_ahead(c);
        float * to = out + c * channels;
        if (!cells.has(c)) {
            memset(to, 0, sizeof(float) * static_cast<size_t>(channels));
            continue;
        }
        const char * row = cells.row(c);
        const int last = cells.head_dim - kLanes;
        for (int i = 0; i < cells.head_dim; i += kLanes) {
            const int at = i < last ? i : last;  // the last vector may overlap the one before
            Simd::store(to + at, load_channels<true>(cells.type, row, at, cells.head_dim));
        }
    }
}

// sum over k < n of a[i * ai + k * ak] * b[j][k], for MR values of i and NV panels j
template <int MR, int NV>
inline void multiply(const float * a, int ai, int ak, const float * const * b, int n, F (&c)[MR][NV]) {
    EDGEKV_UNROLL
    for (int i = 0; i < MR; ++i) {
        EDGEKV_UNROLL
        for (int j = 0; j < NV; ++j) {
            c[i][j] = Simd::zero();
        }
    }
    for (int k = 0; k < n; ++k) {
        F line[NV];
        EDGEKV_UNROLL
        for (int j = 0; j < NV; ++j) {
            line[j] = Simd::load(b[j] + k * kLanes);
        }
        EDGEKV_UNROLL
        for (int i = 0; i < MR; ++i) {
            const F x = Simd::set1(a[i * ai + k * ak]);
            EDGEKV_UNROLL
            for (int j = 0; j < NV; ++j) {
                c[i][j] = Simd::fma(x, line[j], c[i][j]);
            }
        }
    }
}

// The panels at work, at most kPromptPanels.
struct Panels {
    int n;
    const char * q[kPromptPanels];
    float * scores[kPromptPanels];  // [64][kLanes], then the weights in the form of the second product
    float * acc[kPromptPanels];     // [v_channels][kLanes]
    const float * factor[kPromptPanels];  // [kLanes] for what acc holds, or null
};

// Scores in single precision.
struct KeysF32 {
    static constexpr int kPanels = Simd::kPromptPanels;

    // queries [kLanes][k_channels], to a panel
    static void pack_q(const float * queries, int channels, char * panel) {
        for (int d = 0; d < channels; d += kLanes) {
            F x[kLanes];
            EDGEKV_UNROLL
            for (int r = 0; r < kLanes; ++r) {
                x[r] = Simd::load(queries + r * channels + d);
            }
            Simd::transpose(x);
            EDGEKV_UNROLL
            for (int i = 0; i < kLanes; ++i) {
                Simd::store(panel + static_cast<size_t>((d + i) * kLanes) * 4, x[i]);
            }
        }
    }
    static void pack_k(const Cells & cells, int channels, char * k) { widen(cells, channels, reinterpret_cast<float *>(k)); }

    template <int NV>
    static void scores_of(const float * k, int channels, int head_dim, const Panels & p) {
        constexpr int height = Simd::prompt_height(NV);
        const float * q[NV];
        for (int j = 0; j < NV; ++j) {
            q[j] = reinterpret_cast<const float *>(p.q[j]);
        }
        for (int c = 0; c < kPromptCells; c += height) {
            F s[height][NV];
            multiply<height, NV>(k + c * channels, channels, 1, q, head_dim, s);
            for (int i = 0; i < height; ++i) {
                for (int j = 0; j < NV; ++j) {
                    Simd::store(p.scores[j] + (c + i) * kLanes, s[i][j]);
                }
            }
        }
    }
    static void scores(const char * k, int channels, int head_dim, const Panels & p) {
        for_count<Simd::kPromptPanels>(p.n, [&](auto n) { scores_of<n>(reinterpret_cast<const float *>(k), channels, head_dim, p); });
    }
};

// Sums over V in single precision.
struct ValuesF32 {
    static constexpr int kDegree = 5;

    static void pack_v(const Cells & cells, int channels, char * v) { widen(cells, channels, reinterpret_cast<float *>(v)); }
    static void put(float * weights, int cell, F & even, F & odd) {
        Simd::store(weights + cell * kLanes, even);
        Simd::store(weights + (cell + 1) * kLanes, odd);
    }
    static float weight(const float * weights, int cell, int lane) { return weights[cell * kLanes + lane]; }

    template <int NV>
    static void add_of(const float * v, int channels, int head_dim, const Panels & p) {
        constexpr int height = Simd::prompt_height(NV);
        for (int d = 0; d < head_dim; d += height) {
            F sums[height][NV];
            multiply<height, NV>(v + d, 1, channels, p.scores, kPromptCells, sums);
            for (int j = 0; j < NV; ++j) {
                float * acc = p.acc[j] + d * kLanes;
                const F factor = p.factor[j] ? Simd::load(p.factor[j]) : Simd::set1(1.0f);
                for (int i = 0; i < height; ++i) {
                    Simd::store(acc + i * kLanes, Simd::fma(Simd::load(acc + i * kLanes), factor, sums[i][j]));
                }
            }
        }
    }
    static void add(const char * v, int channels, int head_dim, const Panels & p) {
        for_count<Simd::kPromptPanels>(p.n, [&](auto n) { add_of<n>(reinterpret_cast<const float *>(v), channels, head_dim, p); });
    }
};

}  // namespace
}  // namespace edgekv
