#include "kernels/simd/simd_avx512.h"
// The headers below use its Simd.
#include "kernels/prompt/prompt_bf16.h"

namespace edgekv {
namespace {

// Scores by products of pairs of channels in vectors. Where products are large, keys are floats, and so are queries again, good to 16 bits: a
// product in single precision costs two of pairs, and split operands would need three.
struct KeysPairs : KeysBf16 {
    static constexpr int kPanels = Simd::kPromptPanels;

    void pack_k(const Cells & cells, int channels, char * k) {
        pack_high(cells, channels, k);
        if (large) {
            widen(cells, channels, reinterpret_cast<float *>(k));
            return;
        }
        for (int c = 0; c < kPromptCells; ++c) {
            cells.fetch_ahead(c);
        }
    }

    // Adds the products with a pair of channels: `keys` has that of the first of the cells, and the next cell's `stride` dwords behind.
    template <int NV, int height>
    static void add_pair(const int32_t * keys, int stride, const int32_t * const * q, F (&s)[height][NV]) {
        I line[NV];
        EDGEKV_UNROLL
        for (int j = 0; j < NV; ++j) {
            line[j] = Simd::iload(q[j]);
        }
        EDGEKV_UNROLL
        for (int i = 0; i < height; ++i) {
            const I x = Simd::iset1(keys[i * stride]);
            EDGEKV_UNROLL
            for (int j = 0; j < NV; ++j) {
                s[i][j] = _mm512_dpbf16_ps(s[i][j], (__m512bh) x, (__m512bh) line[j]);
            }
        }
    }
    template <int NV, int height>
    static void add_floats(const float * keys, int stride, const int32_t * const * q, size_t rests, F (&s)[height][NV]) {
        EDGEKV_UNROLL
        for (int odd = 0; odd < kPair; ++odd) {
            F line[NV];
            EDGEKV_UNROLL
            for (int j = 0; j < NV; ++j) {
                const I high = Simd::iload(q[j]), low = Simd::iload(q[j] + rests);
                line[j] = odd ? Simd::add(upper(high), upper(low))
                              : Simd::add(Simd::as_float(Simd::template left<16>(high)), Simd::as_float(Simd::template left<16>(low)));
            }
            EDGEKV_UNROLL
            for (int i = 0; i < height; ++i) {
                const F x = Simd::set1(keys[i * stride + odd]);
                EDGEKV_UNROLL
                for (int j = 0; j < NV; ++j) {
                    s[i][j] = Simd::fma(x, line[j], s[i][j]);
                }
            }
        }
    }

    template <int NV>
    void scores_of(const char * k, int channels, int head_dim, const Panels & p) const {
        constexpr int height = Simd::prompt_height(NV);
        const int n = channels / kPair;
        for (int c = 0; c < kPromptCells; c += height) {
            F s[height][NV];
            const int32_t * q[NV];
            EDGEKV_UNROLL
            for (int j = 0; j < NV; ++j) {
                q[j] = reinterpret_cast<const int32_t *>(p.q[j]);
                EDGEKV_UNROLL
                for (int i = 0; i < height; ++i) {
                    s[i][j] = Simd::zero();
                }
            }
            for (int d = 0; d < head_dim / kPair; ++d) {
                if (large) {
                    add_floats<NV, height>(reinterpret_cast<const float *>(k) + c * channels + d * kPair, channels, q, static_cast<size_t>(n * kLanes), s);
                } else {
                    add_pair<NV, height>(reinterpret_cast<const int32_t *>(k) + c * n + d, n, q, s);
                }
                EDGEKV_UNROLL
                for (int j = 0; j < NV; ++j) {
                    q[j] += kLanes;
                }
            }
            EDGEKV_UNROLL
            for (int i = 0; i < height; ++i) {
                EDGEKV_UNROLL
                for (int j = 0; j < NV; ++j) {
                    Simd::store(p.scores[j] + (c + i) * kLanes, s[i][j]);
                }
            }
        }
    }
    void scores(const char * k, int channels, int head_dim, const Panels & p) const {
        switch (p.n) {
            case 1: return scores_of<1>(k, channels, head_dim, p);
            case 2: return scores_of<2>(k, channels, head_dim, p);
            case 3: return scores_of<3>(k, channels, head_dim, p);
        }
    }
};

// Sums over V by products of pairs of cells in vectors.
struct ValuesPairs {
    static constexpr int kDegree = 3;

    static void pack_v(const Cells & cells, int channels, char * v) { pack_values(cells, channels, v); }
    static void put(float * weights, int cell, F & even, F & odd) { put_pair(weights, cell, even, odd); }
    static float weight(const float * weights, int cell, int lane) { return weight_of_pair(weights, cell, lane); }

    template <int NV>
    static void add_of(const int32_t * v, int head_dim, const Panels & p) {
        constexpr int height = Simd::prompt_height(NV);
        constexpr int n = kPromptCells / kPair;
        for (int d = 0; d < head_dim; d += height) {
            F sums[height][NV];
            EDGEKV_UNROLL
            for (int i = 0; i < height; ++i) {
                EDGEKV_UNROLL
                for (int j = 0; j < NV; ++j) {
                    float * acc = p.acc[j] + (d + i) * kLanes;
                    sums[i][j] = p.factor[j] ? Simd::mul(Simd::load(acc), Simd::load(p.factor[j])) : Simd::load(acc);
                }
            }
            for (int k = 0; k < n; ++k) {
                I w[NV];
                EDGEKV_UNROLL
                for (int j = 0; j < NV; ++j) {
                    w[j] = Simd::iload(p.scores[j] + k * kLanes);
                }
                EDGEKV_UNROLL
                for (int i = 0; i < height; ++i) {
                    const I x = Simd::iset1(v[(d + i) * n + k]);
                    EDGEKV_UNROLL
                    for (int j = 0; j < NV; ++j) {
                        sums[i][j] = _mm512_dpbf16_ps(sums[i][j], (__m512bh) x, (__m512bh) w[j]);
                    }
                }
            }
            EDGEKV_UNROLL
            for (int i = 0; i < height; ++i) {
                EDGEKV_UNROLL
                for (int j = 0; j < NV; ++j) {
                    Simd::store(p.acc[j] + (d + i) * kLanes, sums[i][j]);
                }
            }
        }
    }
    static void add(const char * v, int, int head_dim, const Panels & p) {
        const int32_t * x = reinterpret_cast<const int32_t *>(v);
        switch (p.n) {
            case 1: return add_of<1>(x, head_dim, p);
            case 2: return add_of<2>(x, head_dim, p);
            case 3: return add_of<3>(x, head_dim, p);
        }
    }
};

}  // namespace

const PromptKernels kPromptAvx512Bf16 = {attend_item<KeysPairs, ValuesPairs>};

}  // namespace edgekv
