// The two matrix products of a tile, written once over the Simd of the translation unit that includes this.
#pragma once

#include <math.h>
#include <string.h>

#include <type_traits>

#include "kernels/decode/attend_internal.h"
#include "kernels/simd/simd_exp.h"

#define EDGEKV_UNROLL _Pragma("GCC unroll 16")

namespace edgekv {
namespace {

constexpr int kBlock = kQuantBlock;
constexpr int kMaxBlocks = kMaxHeadDim / kBlock;

// What depends on it is compiled for each usual head size D, a multiple of 16, and once for all other sizes, as kAny: multiples of 8, and
// of 64 with blocks. Their rows may end in half a vector, which is read padded with zeros.
constexpr int kAny = 0;
// The usual row of a compressed cache: its first channels are V.
constexpr int kLatent = 576, kLatentV = 512;

template <int N>
using Constant = std::integral_constant<int, N>;

// Calls `run` with a head size, or with kAny if no kernel is compiled for the size itself.
template <class Run>
inline void for_head_dim(int head_dim, Run run) {
#if !defined(EDGEKV_ANY_HEAD_DIM)
    switch (head_dim) {
        case 64: return run(Constant<64>{});
        case 80: return run(Constant<80>{});
        case 96: return run(Constant<96>{});
        case 128: return run(Constant<128>{});
        case 256: return run(Constant<256>{});
        case kLatent: return run(Constant<kLatent>{});
    }
#endif
    (void) head_dim;
    run(Constant<kAny>{});
}

// Calls `run` with n, which is 1 to MOST.
template <int MOST, int N = 1, class Run>
inline void for_count(int n, Run run) {
    if (N == MOST || n == N) {
        run(Constant<N>{});
    } else if constexpr (N < MOST) {
        for_count<MOST, N + 1>(n, run);
    }
}

// Calls `run` with a type of cells.
template <class Run>
inline void for_type(CellType type, Run run) {
    switch (type) {
        case CellType::f16: return run(std::integral_constant<CellType, CellType::f16>{});
        case CellType::q8_0: return run(std::integral_constant<CellType, CellType::q8_0>{});
        case CellType::q4_0: return run(std::integral_constant<CellType, CellType::q4_0>{});
    }
}

template <int D>
constexpr int dim_of(int head_dim) {
    return D != kAny ? D : head_dim;
}
template <int D>
constexpr int most_dim() {
    return D != kAny ? D : kMaxHeadDim;
}

// Values from i on of `dim`. `Whole`: rows end with a vector.
template <bool Whole>
inline F load_halves(const char * row, int i, int dim) {
    return Whole ? Simd::load_f16(row + i * 2) : Simd::load_some_f16(row + i * 2, dim - i);
}
template <int D>
inline F load_floats(const char * values, int i, int dim) {
    return D != kAny ? Simd::load(values + i * 4) : Simd::load_some(values + i * 4, dim - i);
}
// Channels of a row of K or V from i on.
template <bool Whole>
inline F load_channels(CellType type, const char * row, int i, int dim) {
    if (type == CellType::f16) {
        return load_halves<Whole>(row, i, dim);
    }
    const char * block = row + i / kBlock * block_bytes(type);
    const F codes = type == CellType::q8_0 ? Simd::load_i8(block + 2 + i % kBlock)
                                           : Simd::load_q4(block + 2 + i % (kBlock / 2), i % kBlock >= kBlock / 2);
    return Simd::mul(codes, Simd::dup_f16(block));
}

// What to prefetch while a strip is processed: `bytes` at `first` + c * `stride` for each of its cells c.
struct Ahead {
    const char * first;
    int stride, bytes;
};

// Scales of blocks by block and cell of a tile.
struct Scales {
    float k[kMaxBlocks][kTileCells];
    float v[kMaxBlocks][kTileCells];
};

// One tile of one KV head whose cells lie a stride apart, strip by strip.
struct Unit {
    const char * k[kTileStrips];  // first cell of each strip
    const char * v[kTileStrips];
    int cells[kTileStrips];  // cells of the strip that exist, at least 1
    int n_strips;
    int head_dim, v_dim;
    size_t k_stride[kTileStrips], v_stride[kTileStrips];
    Ahead next_k[kTileStrips], next_v[kTileStrips];
    const uint8_t * visible;  // the tile's cells that the queries at work see
    int n_visible;
    Scales scales;

    // Cells c to c+3 of a strip. Past the last cell that exists it repeats that cell; the bias hides the score.
    void four_k(int strip, int c, const char ** rows) const {
        const int last = cells[strip] - 1;
        const size_t stride = k_stride[strip];
        rows[0] = k[strip] + static_cast<size_t>(c < last ? c : last) * stride;
        rows[1] = rows[0] + (c < last ? stride : 0);
        rows[2] = rows[1] + (c + 1 < last ? stride : 0);
        rows[3] = rows[2] + (c + 2 < last ? stride : 0);
    }
    int cell(int n) const { return visible[n]; }
    const char * v_row(int c) const {
        return v[c / kStripCells] + static_cast<size_t>(c % kStripCells) * v_stride[c / kStripCells];
    }
    // prefetches one cell of the next tile
    void fetch_k(int strip, int c) const { fetch(next_k[strip], c); }
    void fetch_v(int c) const { fetch(next_v[c / kStripCells], c % kStripCells); }

private:
    static void fetch(const Ahead & ahead, int c) {
        const char * p = ahead.first + c * ahead.stride;
        for (int i = 0; i < ahead.bytes; i += 64) {
            Simd::prefetch(p + i);
        }
    }
};

// One tile of rows that lie anywhere. The last row is repeated to the end of the tile.
struct Gathered {
    const char *k[kTileCells], *v[kTileCells];
    const Gathered * next;  // to prefetch: the tile that follows, or this one
    int k_bytes, v_bytes;
    int n_strips;
    int head_dim, v_dim;
    int n_visible;
    Scales scales;

    void four_k(int strip, int c, const char ** rows) const { memcpy(rows, k + strip * kStripCells + c, 4 * sizeof(*rows)); }
    int cell(int n) const { return n; }
    const char * v_row(int c) const { return v[c]; }
    void fetch_k(int strip, int c) const { fetch(next->k[strip * kStripCells + c], k_bytes); }
    void fetch_v(int c) const { fetch(next->v[c], v_bytes); }

    static void fetch(const char * p, int n_bytes) {
        for (int i = 0; i < n_bytes; i += 64) {
            Simd::prefetch(p + i);
        }
    }
};

constexpr int q8_vectors(int dim) { return (dim / 4 + kLanes - 1) / kLanes; }
// A query against q8_0 is its int8 values in dot4() order, then a scale per block, then the sum that a biased K adds per block.
constexpr size_t q8_scales_offset(int dim) { return static_cast<size_t>(q8_vectors(dim)) * 4 * sizeof(I); }

// The scores of four cells with NQ queries, still spread over the 128-bit groups: see Simd::quad().
template <int D, int NQ>
inline void four_scores(const char * const * k, const char * const * q, int head_dim, F (*part)[4], int group) {
    const int dim = dim_of<D>(head_dim);
    F acc[NQ][4];
    EDGEKV_UNROLL
    for (int r = 0; r < NQ; ++r) {
        acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = Simd::zero();
    }
    for (int i = 0; i < dim; i += kLanes) {
        EDGEKV_UNROLL
        for (int c = 0; c < 4; ++c) {
            const F x = load_halves<D != kAny>(k[c], i, dim);
            EDGEKV_UNROLL
            for (int r = 0; r < NQ; ++r) {
                acc[r][c] = Simd::fma(x, Simd::load(q[r] + i * 4), acc[r][c]);
            }
        }
    }
    EDGEKV_UNROLL
    for (int r = 0; r < NQ; ++r) {
        part[r][group] = Simd::quad(acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
    }
}

// scores[r][cell] = q[r] . k[cell] for the NQ queries
template <class U, int D, int NQ>
void qk_f16(const U & unit, const char * const * q, float (*scores)[kTileCells]) {
    for (int s = 0; s < unit.n_strips; ++s) {
        F part[NQ][4];
        const auto group = [&](int g) {
            const char * k[4];
            unit.four_k(s, 4 * g, k);
            for (int c = 0; c < 4; ++c) {
                unit.fetch_k(s, 4 * g + c);
            }
            four_scores<D, NQ>(k, q, unit.head_dim, part, g);
        };
        if constexpr (NQ < 4) {
            EDGEKV_UNROLL
            for (int g = 0; g < 4; ++g) {
                group(g);
            }
        } else {  // too few registers to keep all parts
            for (int g = 0; g < 4; ++g) {
                group(g);
            }
        }
        EDGEKV_UNROLL
        for (int r = 0; r < NQ; ++r) {
            EDGEKV_UNROLL
            for (int i = 0; i < kStripCells / kLanes; ++i) {
                Simd::store(scores[r] + s * kStripCells + i * kLanes, Simd::join(part[r] + i * kLanes / 4));
            }
        }
    }
}

// As qk_f16, by integer dot products with the query quantised per block.
template <class U, int D, int NQ>
void qk_q8(const U & unit, const char * const * q, float (*scores)[kTileCells]) {
    const int dim = dim_of<D>(unit.head_dim);
    const int n_blocks = dim / kBlock;
    constexpr int per_vector = kLanes / 8;  // blocks in a vector of int8
    constexpr int quads = kLanes / 4;
    for (int s = 0; s < unit.n_strips; ++s) {
        for (int c0 = 0; c0 < kStripCells; c0 += kLanes) {
            F score[NQ];
            EDGEKV_UNROLL
            for (int r = 0; r < NQ; ++r) {
                score[r] = Simd::zero();
            }
            for (int v = 0; v < q8_vectors(dim); ++v) {
                I acc[NQ][quads];
                EDGEKV_UNROLL
                for (int g = 0; g < quads; ++g) {
                    const char * rows[4];
                    I k[4];
                    unit.four_k(s, c0 + 4 * g, rows);
                    if (v == 0) {
                        for (int c = 0; c < 4; ++c) {
                            unit.fetch_k(s, c0 + 4 * g + c);
                        }
                    }
                    EDGEKV_UNROLL
                    for (int c = 0; c < 4; ++c) {
                        k[c] = Simd::load_q8(rows[c], v, n_blocks);
                    }
                    Simd::transpose4(k);
                    EDGEKV_UNROLL
                    for (int r = 0; r < NQ; ++r) {
                        acc[r][g] = Simd::izero();
                        EDGEKV_UNROLL
                        for (int j = 0; j < 4; ++j) {
                            acc[r][g] = Simd::dot4(acc[r][g], k[j], Simd::iload(q[r] + (v * 4 + j) * sizeof(I)));
                        }
                    }
                }
                EDGEKV_UNROLL
                for (int r = 0; r < NQ; ++r) {
                    const float * q_scale = reinterpret_cast<const float *>(q[r] + q8_scales_offset(dim));
                    const int32_t * excess = reinterpret_cast<const int32_t *>(q_scale + n_blocks);
                    I sums[per_vector];
                    Simd::block_sums(acc[r], sums);
                    EDGEKV_UNROLL
                    for (int i = 0; i < per_vector; ++i) {
                        const int b = v * per_vector + i;
                        if (b < n_blocks) {
                            const I dot = Simd::kBiasedK ? Simd::isub(sums[i], excess[b]) : sums[i];
                            const F scale = Simd::mul(Simd::load(unit.scales.k[b] + s * kStripCells + c0), Simd::set1(q_scale[b]));
                            score[r] = Simd::fma(Simd::to_float(dot), scale, score[r]);
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

// The sums over V are compiled once for all head sizes whose rows are whole vectors: they take steps of so many values.
constexpr int kPvStep = Simd::kPvVectors * kLanes;

// Values from i0 + i on, where i0 is a multiple of kPvStep or of kBlock, and i is known to the compiler. Those of a block still lack their scale.
template <CellType T, bool Whole>
inline F load_value(const char * row, int i0, int i, int dim) {
    if constexpr (T == CellType::f16) {
        return load_halves<Whole>(row, i0 + i, dim);
    } else {
        const char * codes = row + static_cast<size_t>(i0 / kBlock + i / kBlock) * block_bytes(T) + 2;
        const int at = i % kBlock + (kPvStep % kBlock == 0 ? 0 : i0 % kBlock);
        return T == CellType::q8_0 ? Simd::load_i8(codes + at) : Simd::load_q4(codes + at % (kBlock / 2), at >= kBlock / 2);
    }
}

// acc[r] = acc[r] * factor[r] + sum over cells of weight * v[cell], for dimensions i0 .. i0 + NV*kLanes.
// weights: [NQ][kTileCells] or, with the block scale folded in, [NQ][kMaxBlocks][kTileCells]
template <class U, CellType T, bool Whole, int NQ, int NV>
void pv_block(const U & unit, const float * weights, float * const * acc, const float * factor, int i0) {
    constexpr int per_query = in_blocks(T) ? kMaxBlocks : 1;
    weights += in_blocks(T) ? i0 / kBlock * kTileCells : 0;
    F sum[NQ][NV];
    EDGEKV_UNROLL
    for (int r = 0; r < NQ; ++r) {
        EDGEKV_UNROLL
        for (int j = 0; j < NV; ++j) {
            sum[r][j] = Simd::mul(Simd::load(acc[r] + i0 + j * kLanes), Simd::set1(factor[r]));
        }
    }
    for (int n = 0; n < unit.n_visible; ++n) {
        const int c = unit.cell(n);
        const char * row = unit.v_row(c);
        if (i0 == 0) {
            unit.fetch_v(c);
        }
        EDGEKV_UNROLL
        for (int j = 0; j < NV; ++j) {
            const F x = load_value<T, Whole>(row, i0, j * kLanes, unit.v_dim);
            EDGEKV_UNROLL
            for (int r = 0; r < NQ; ++r) {
                const int b = in_blocks(T) ? j * kLanes / kBlock : 0;
                sum[r][j] = Simd::fma(x, Simd::set1(weights[(r * per_query + b) * kTileCells + c]), sum[r][j]);
            }
        }
    }
    EDGEKV_UNROLL
    for (int r = 0; r < NQ; ++r) {
        EDGEKV_UNROLL
        for (int j = 0; j < NV; ++j) {
            Simd::store(acc[r] + i0 + j * kLanes, sum[r][j]);
        }
    }
}

// The last `left` vectors, NV at most.
template <class U, CellType T, bool Whole, int NQ, int NV>
void pv_rest(const U & unit, const float * weights, float * const * acc, const float * factor, int i0, int left) {
    if constexpr (NV > 0) {
        if (left == NV) {
            pv_block<U, T, Whole, NQ, NV>(unit, weights, acc, factor, i0);
        } else {
            pv_rest<U, T, Whole, NQ, NV - 1>(unit, weights, acc, factor, i0, left);
        }
    }
}

template <class U, CellType T, bool Whole, int NQ>
void pv(const U & unit, const float (*p)[kTileCells], float * const * acc, const float * factor) {
    const float * weights = p[0];
    alignas(64) float scaled[in_blocks(T) ? NQ * kMaxBlocks * kTileCells : 1];
    if constexpr (in_blocks(T)) {
        for (int r = 0; r < NQ; ++r) {
            for (int b = 0; b < unit.v_dim / kBlock; ++b) {
                for (int c = 0; c < unit.n_strips * kStripCells; c += kLanes) {
                    Simd::store(scaled + (r * kMaxBlocks + b) * kTileCells + c,
                                Simd::mul(Simd::load(p[r] + c), Simd::load(unit.scales.v[b] + c)));
                }
            }
        }
        weights = scaled;
    }
    int left = (unit.v_dim + kLanes - 1) / kLanes, i0 = 0;
    for (; left >= Simd::kPvVectors; left -= Simd::kPvVectors, i0 += kPvStep) {
        pv_block<U, T, Whole, NQ, Simd::kPvVectors>(unit, weights, acc, factor, i0);
    }
    if constexpr (!in_blocks(T) || (Whole && kBlock % kPvStep != 0)) {
        pv_rest<U, T, Whole, NQ, Simd::kPvVectors - 1>(unit, weights, acc, factor, i0, left);
    }
}

}  // namespace
}  // namespace edgekv
