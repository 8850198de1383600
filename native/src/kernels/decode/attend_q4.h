// The scores of keys in q4_0, as attend_qkpv.h has those of other types.
#pragma once

#include "kernels/decode/attend_qkpv.h"

namespace edgekv {
namespace {

// Codes of q4_0 fill a vector with the blocks of one row, or of two rows that have only two blocks. A prepared query has two parts of four
// vectors, for the low and the high halves of the bytes.
template <int D>
constexpr int q4_rows() {
    return D == 64 && kLanes == 16 ? 2 : 1;
}
template <int D>
constexpr int q4_blocks() {
    return kLanes / 4 / q4_rows<D>();
}
template <int D>
constexpr int q4_vectors(int dim) {
    return (dim / kBlock + q4_blocks<D>() - 1) / q4_blocks<D>();
}
template <int D>
constexpr size_t q4_query_bytes() {  // of a vector's half
    return 4 * sizeof(I) / q4_rows<D>();
}
template <int D>
constexpr size_t q4_scales_offset(int dim) {
    return static_cast<size_t>(q4_vectors<D>(dim)) * 2 * q4_query_bytes<D>();
}

template <int D>
inline I q4_query(const char * q, int v, int half, int j) {
    const char * at = q + static_cast<size_t>(2 * v + half) * q4_query_bytes<D>() + static_cast<size_t>(j) * (sizeof(I) / q4_rows<D>());
    if constexpr (q4_rows<D>() == 2) {
        return Simd::iload_twice(at);
    } else {
        return Simd::iload(at);
    }
}

// As qk_q8. Codes stay as stored: what is too much by eight times the sum of a block's query is taken off in the end.
template <class U, int D, int NQ>
void qk_q4(const U & unit, const char * const * q, float (*scores)[kTileCells]) {
    const int dim = dim_of<D>(unit.head_dim), n_blocks = dim / kBlock;
    constexpr int n_rows = q4_rows<D>(), per_vector = q4_blocks<D>(), turns = kLanes / 4 / n_rows;
    const I low_half = Simd::iset1(0x0f0f0f0f);
    for (int s = 0; s < unit.n_strips; ++s) {
        for (int c0 = 0; c0 < kStripCells; c0 += kLanes) {
            F score[NQ];
            EDGEKV_UNROLL
            for (int r = 0; r < NQ; ++r) {
                score[r] = Simd::zero();
            }
            for (int v = 0; v < q4_vectors<D>(dim); ++v) {
                I acc[NQ][turns];
                EDGEKV_UNROLL
                for (int g = 0; g < turns; ++g) {
                    const int first = c0 + 4 * n_rows * g;
                    const char * rows[n_rows][4];
                    EDGEKV_UNROLL
                    for (int i = 0; i < n_rows; ++i) {
                        unit.four_k(s, first + 4 * i, rows[i]);
                    }
                    for (int c = 0; v == 0 && c < 4 * n_rows; ++c) {
                        unit.fetch_k(s, first + c);
                    }
                    I k[4];
                    EDGEKV_UNROLL
                    for (int c = 0; c < 4; ++c) {
                        k[c] = Simd::groups_at([&](int group) {
                            const int b = v * per_vector + group % per_vector;
                            constexpr bool whole = D != kAny && D / kBlock % per_vector == 0;
                            return whole || b < n_blocks ? rows[group / per_vector][c] + b * block_bytes(CellType::q4_0) + 2 : nullptr;
                        });
                    }
                    Simd::turn4(k);
                    EDGEKV_UNROLL
                    for (int r = 0; r < NQ; ++r) {
                        acc[r][g] = Simd::izero();
                    }
                    EDGEKV_UNROLL
                    for (int j = 0; j < 4; ++j) {
                        const I low = Simd::iand(k[j], low_half), high = Simd::iand(Simd::template right<4>(k[j]), low_half);
                        EDGEKV_UNROLL
                        for (int r = 0; r < NQ; ++r) {
                            acc[r][g] = Simd::code_dot(acc[r][g], low, q4_query<D>(q[r], v, 0, j));
                            acc[r][g] = Simd::code_dot(acc[r][g], high, q4_query<D>(q[r], v, 1, j));
                        }
                    }
                }
                EDGEKV_UNROLL
                for (int r = 0; r < NQ; ++r) {
                    const float * q_scale = reinterpret_cast<const float *>(q[r] + q4_scales_offset<D>(dim));
                    const int32_t * excess = reinterpret_cast<const int32_t *>(q_scale + n_blocks);
                    EDGEKV_UNROLL
                    for (int g = 0; g < turns; ++g) {
                        acc[r][g] = Simd::code_sums(Simd::izero(), acc[r][g]);
                    }
                    I sums[per_vector];
                    Simd::template turn_groups<turns>(acc[r], sums);
                    EDGEKV_UNROLL
                    for (int i = 0; i < per_vector; ++i) {
                        const int b = v * per_vector + i;
                        if (b < n_blocks) {
                            const F scale = Simd::mul(Simd::load(unit.scales.k[b] + s * kStripCells + c0), Simd::set1(q_scale[b]));
                            score[r] = Simd::fma(Simd::to_float(Simd::isub(sums[i], excess[b])), scale, score[r]);
                        }
                    }
                }
            }
            EDGEKV_UNROLL
            for (int r = 0; r < NQ; ++r) {
                Simd::store(scores[r] + s * kStripCells + c0, score[r]);
            }
        }
    }
}

}  // namespace
}  // namespace edgekv
