// Attention to every cell: a thread walks its share of the (tile, KV head) units and keeps an online softmax for each query.
#pragma once

#include <string.h>

#include "kernels/decode/attend_query.h"
#include "kernels/decode/attend_softmax.h"

namespace edgekv {
namespace {

template <class U>
using QkFn = void (*)(const U &, const char * const * q, float (*scores)[kTileCells]);
template <class U>
using PvFn = void (*)(const U &, const float (*p)[kTileCells], float * const * acc, const float * factor);

constexpr int queries(int n) { return n < Simd::kQueries ? n : Simd::kQueries; }
template <class U, CellType T, bool Whole>
constexpr PvFn<U> kPv[] = {pv<U, T, Whole, queries(1)>, pv<U, T, Whole, queries(2)>, pv<U, T, Whole, queries(3)>, pv<U, T, Whole, queries(4)>};

// Functions by the number of queries in the register block, which is kQueries of the instruction set at most.
template <class U>
struct Products {
    const QkFn<U> * qk;
    const PvFn<U> * pv;

    template <int D>
    static Products of(CellType k_type, CellType v_type) {
        return {qk_of<D>(k_type), pv_of<D != kAny>(v_type)};
    }

private:
    template <int D>
    static const QkFn<U> * qk_of(CellType type) {
        static constexpr QkFn<U> f16[] = {qk_f16<U, D, queries(1)>, qk_f16<U, D, queries(2)>, qk_f16<U, D, queries(3)>, qk_f16<U, D, queries(4)>};
        if constexpr (D % kBlock == 0) {
            static constexpr QkFn<U> q8[] = {qk_q8<U, D, queries(1)>, qk_q8<U, D, queries(2)>, qk_q8<U, D, queries(3)>, qk_q8<U, D, queries(4)>};
            static constexpr QkFn<U> q4[] = {qk_q4<U, D, queries(1)>, qk_q4<U, D, queries(2)>, qk_q4<U, D, queries(3)>, qk_q4<U, D, queries(4)>};
            return type == CellType::q8_0 ? q8 : type == CellType::q4_0 ? q4 : f16;
        } else {
            return f16;
        }
    }
    template <bool Whole>
    static const PvFn<U> * pv_of(CellType type) {
        return type == CellType::q8_0   ? kPv<U, CellType::q8_0, Whole>
               : type == CellType::q4_0 ? kPv<U, CellType::q4_0, Whole>
                                        : kPv<U, CellType::f16, Whole>;
    }
};

// What differs between head sizes.
struct OfHeadDim {
    Products<Unit> units;
    Products<Gathered> rows;
    void (*prepare_query)(const AttendProblem & p, int token, int head, char * to);
};

// Cells of a tile, ascending.
struct TileCells {
    uint8_t cells[kTileCells];
    int n;

    void set(uint64_t bits) {
        for (n = 0; bits != 0; bits &= bits - 1) {
            cells[n++] = static_cast<uint8_t>(__builtin_ctzll(bits));
        }
    }
};

// The heads of a tile share this.
struct Tile {
    int first_cell;
    int n_cells;
    int tokens[kMaxQueryTokens];  // tokens that see any cell of the tile
    int n_tokens;
    bool alike;         // these tokens see the same cells, ...
    TileCells visible;  // ... namely these
    TileCells visible_of[kMaxQueryTokens];  // else: the cells that each token sees
    alignas(64) float bias[kMaxQueryTokens][kTileCells];  // -inf from n_cells on
};

inline void prepare_tile(const AttendProblem & p, const AttendPlan & plan, int index, Tile & tile) {
    const int tile_cells = plan.tile_strips * kStripCells;
    tile.first_cell = index * tile_cells;
    tile.n_cells = p.n_cells - tile.first_cell < tile_cells ? p.n_cells - tile.first_cell : tile_cells;
    tile.n_tokens = 0;
    tile.alike = true;
    uint64_t seen[kMaxQueryTokens];
    for (int t = 0; t < p.n_tokens; ++t) {
        load_bias(p, t, tile.first_cell, tile.n_cells, kTileCells, tile.bias[t]);
        uint64_t bits = 0;
        for (int c = 0; c < kTileCells; c += kLanes) {
            bits |= static_cast<uint64_t>(Simd::visible_bits(Simd::load(tile.bias[t] + c))) << c;
        }
        if (bits != 0) {
            seen[tile.n_tokens] = bits;
            tile.alike = tile.alike && bits == seen[0];
            tile.tokens[tile.n_tokens++] = t;
        }
    }
    if (tile.alike && tile.n_tokens > 0) {
        tile.visible.set(seen[0]);
    }
    for (int i = 0; i < tile.n_tokens && !tile.alike; ++i) {
        tile.visible_of[i].set(seen[i]);
    }
}

// The f16 scales of the unit's rows in blocks, as floats by block and cell; 0 for cells that do not exist.
inline void load_scales(const Unit & unit, CellType type, const char * const * strips, const size_t * strides, int n_blocks,
                        float (*scale)[kTileCells]) {
    for (int s = 0; s < unit.n_strips; ++s) {
        const size_t stride = strides[s];
        for (int b = 0; b < n_blocks; ++b) {
            const char * first = strips[s] + static_cast<size_t>(b) * block_bytes(type);
            float * dst = scale[b] + s * kStripCells;
            if (unit.cells[s] == kStripCells) {
                for (int c = 0; c < kStripCells; c += kLanes) {
                    Simd::store(dst + c, Simd::gather_f16(first + static_cast<size_t>(c) * stride, stride));
                }
                continue;
            }
            alignas(64) char halves[kStripCells * 2] = {};
            for (int c = 0; c < unit.cells[s]; ++c) {
                memcpy(halves + 2 * c, first + static_cast<size_t>(c) * stride, 2);
            }
            for (int c = 0; c < kStripCells; c += kLanes) {
                Simd::store(dst + c, Simd::load_f16(halves + 2 * c));
            }
        }
    }
}

// Memory is fetched fastest in address order. If a cell's heads lie side by side, a unit prefetches its share of the next tile's cells,
// with all heads. If a head's cells lie side by side, it prefetches its own rows.
inline Ahead ahead_of(const char * cell, size_t stride_cell, size_t stride_head, int head, int n_heads) {
    if (stride_head < stride_cell) {
        const int step = static_cast<int>(stride_cell / static_cast<size_t>(n_heads));
        return {cell + static_cast<size_t>(head * kStripCells) * static_cast<size_t>(step), step, step};
    }
    return {cell + static_cast<size_t>(head) * stride_head, static_cast<int>(stride_cell), static_cast<int>(stride_cell)};
}

inline void prepare_prefetch(const AttendProblem & p, const AttendPlan & plan, int tile, int head, Unit & unit) {
    for (int s = 0; s < unit.n_strips; ++s) {
        const int wanted = tile * plan.tile_strips + s;
        const int strip = wanted < plan.n_strips ? wanted : plan.n_strips - 1;
        const size_t cell = static_cast<size_t>(strip) * kStripCells;
        unit.next_k[s] = ahead_of(p.k + cell * p.k_stride_cell, p.k_stride_cell, p.k_stride_head, head, p.n_head_kv);
        unit.next_v[s] = p.v_in_k != 0 ? Ahead{} : ahead_of(p.v + cell * p.v_stride_cell, p.v_stride_cell, p.v_stride_head, head, p.n_head_kv);
    }
}

inline void prepare_unit(const AttendProblem & p, const Tile & tile, int head, Unit & unit) {
    unit.n_strips = (tile.n_cells + kStripCells - 1) / kStripCells;
    for (int s = 0; s < unit.n_strips; ++s) {
        const size_t cell = static_cast<size_t>(tile.first_cell + s * kStripCells);
        const int left = tile.n_cells - s * kStripCells;
        unit.k[s] = p.k + cell * p.k_stride_cell + static_cast<size_t>(head) * p.k_stride_head;
        unit.v[s] = p.v + cell * p.v_stride_cell + static_cast<size_t>(head) * p.v_stride_head;
        unit.k_stride[s] = p.k_stride_cell;
        unit.v_stride[s] = p.v_stride_cell;
        unit.cells[s] = left < kStripCells ? left : kStripCells;
    }
    if (in_blocks(p.k_type)) {
        load_scales(unit, p.k_type, unit.k, unit.k_stride, p.head_dim / kBlock, unit.scales.k);
    }
    if (in_blocks(p.v_type)) {
        load_scales(unit, p.v_type, unit.v, unit.v_stride, attend_v_dim(p) / kBlock, unit.scales.v);
    }
}

inline void clear_strips(const AttendPlan & plan, char * workspace, int query, int strip, int n_strips) {
    float * sums = reinterpret_cast<float *>(workspace + plan.strip_sum_offset);
    float * tops = reinterpret_cast<float *>(workspace + plan.strip_max_offset);
    for (int s = strip; s < strip + n_strips; ++s) {
        sums[query * plan.strip_stride + s] = 0.0f;
        tops[query * plan.strip_stride + s] = -INFINITY;
    }
}

// The tiles from the first to the last that any token sees. If no tile is seen, first equals end. Cells after the end are empty; among several
// conversations, shorter ones have many such cells.
struct Span {
    int first, end;
};

inline Span seen_tiles(const AttendProblem & p, const AttendPlan & plan, Tile & tile) {
    const auto seen = [&](int index) {
        prepare_tile(p, plan, index, tile);
        return tile.n_tokens > 0;
    };
    Span span = {0, plan.n_tiles};
    while (span.end > 0 && !seen(span.end - 1)) {
        --span.end;
    }
    while (span.first < span.end && !seen(span.first)) {
        ++span.first;
    }
    return span;
}

// One thread's share of a run: its partial softmax in the workspace, and the products of the tiles it walks.
class Share {
public:
    Share(const AttendProblem & p, const AttendPlan & plan, const OfHeadDim & of, char * workspace, int ith) :
        p(p), plan(plan), observed(p.mass_max != nullptr || p.mass_sum != nullptr), products(of.units),
        acc_stride(static_cast<size_t>(plan.acc_stride)) {
        char * partial = workspace + plan.partial_offset + static_cast<size_t>(ith) * plan.partial_bytes;
        max = reinterpret_cast<float *>(partial);
        sum = reinterpret_cast<float *>(partial + plan.sum_offset);
        acc = reinterpret_cast<float *>(partial + plan.acc_offset);
        queries = partial + plan.q_offset;
        strip_sum = reinterpret_cast<float *>(workspace + plan.strip_sum_offset);
        strip_max = reinterpret_cast<float *>(workspace + plan.strip_max_offset);
        for (int query = 0; query < plan.n_queries; ++query) {
            max[query] = -INFINITY;
            sum[query] = 0.0f;
            const int in_head = query % plan.queries_per_kv;
            of.prepare_query(p, in_head / plan.group, query / plan.queries_per_kv * plan.group + in_head % plan.group,
                             queries + static_cast<size_t>(query) * plan.prepared_bytes);
        }
        memset(acc, 0, static_cast<size_t>(plan.n_queries) * acc_stride * sizeof(float));
    }

    // `first_strip`: the place of the tile's strips in the strip sums of its queries.
    void attend(const Tile & tile, Unit & unit, int head, int first_strip) {
        const int n_queries = tile.n_tokens * plan.group;
        const int n_blocks = (n_queries + Simd::kQueries - 1) / Simd::kQueries;
        for (int block = 0, done = 0; block < n_blocks; ++block) {
            const int count = (n_queries - done + n_blocks - block - 1) / (n_blocks - block);  // as even as it gets
            const char * q[Simd::kQueries];
            const float * bias[Simd::kQueries];
            float slope[Simd::kQueries];
            float * out[Simd::kQueries];
            float factor[Simd::kQueries];
            QueryState state[Simd::kQueries];
            for (int r = 0; r < count; ++r) {
                const int token = tile.tokens[(done + r) / plan.group];
                const size_t query = static_cast<size_t>(head * plan.queries_per_kv + token * plan.group + (done + r) % plan.group);
                const size_t strip = query * plan.strip_stride + static_cast<size_t>(first_strip);
                q[r] = queries + query * plan.prepared_bytes;
                bias[r] = tile.bias[token];
                slope[r] = alibi_slope(p, head * plan.group + (done + r) % plan.group);
                out[r] = acc + query * acc_stride;
                state[r] = {max + query, sum + query, observed ? strip_sum + strip : nullptr, observed ? strip_max + strip : nullptr};
            }
            products.qk[count - 1](unit, q, scores);
            softmax_tile(count, unit.n_strips, p.softcap, scores, bias, slope, state, factor);
            weigh_queries(tile, unit, done, count, out, factor);
            done += count;
        }
    }

    const AttendProblem & p;
    const AttendPlan & plan;
    const bool observed;

private:
    // The sums over V of queries [done, done + count) of the tile. A weight of zero must not read its row of V: an infinity or a NaN times
    // zero is a NaN. So tokens that see different cells each walk their own.
    void weigh_queries(const Tile & tile, Unit & unit, int done, int count, float * const * out, const float * factor) {
        for (int r = 0; r < count;) {
            const int token = (done + r) / plan.group, left = (token + 1) * plan.group - (done + r);
            const int n = tile.alike || left > count - r ? count - r : left;
            const TileCells & visible = tile.alike ? tile.visible : tile.visible_of[token];
            unit.visible = visible.cells;
            unit.n_visible = visible.n;
            products.pv[n - 1](unit, scores + r, out + r, factor + r);
            r += n;
        }
    }

    const Products<Unit> products;
    const size_t acc_stride;
    float *max, *sum, *acc, *strip_sum, *strip_max;
    char * queries;
    alignas(64) float scores[Simd::kQueries][kTileCells];
};

inline void clear_tile(const AttendPlan & plan, char * workspace, int index, int head) {
    const int first = index * plan.tile_strips;
    const int n = plan.n_strips - first < plan.tile_strips ? plan.n_strips - first : plan.tile_strips;
    for (int i = 0; i < plan.queries_per_kv; ++i) {
        clear_strips(plan, workspace, head * plan.queries_per_kv + i, first, n);
    }
}

inline void process_all(const AttendProblem & p, const AttendPlan & plan, const OfHeadDim & of, char * workspace, int ith) {
    Tile tile;
    // unit u: tile span.first + u / n_head_kv, KV head u % n_head_kv
    const Span span = seen_tiles(p, plan, tile);
    const int n_units = (span.end - span.first) * p.n_head_kv;
    const int begin = static_cast<int>(static_cast<int64_t>(n_units) * ith / plan.n_threads);
    const int end = static_cast<int>(static_cast<int64_t>(n_units) * (ith + 1) / plan.n_threads);

    Share share(p, plan, of, workspace, ith);
    Unit unit;
    unit.head_dim = p.head_dim;
    unit.v_dim = attend_v_dim(p);
    int tile_index = span.first + begin / p.n_head_kv;
    int head = begin % p.n_head_kv - 1;
    for (int u = begin; u < end; ++u) {
        if (++head == p.n_head_kv) {
            head = 0;
            ++tile_index;
        }
        if (head == 0 || u == begin) {
            prepare_tile(p, plan, tile_index, tile);
        }
        if (share.observed && tile.n_tokens < p.n_tokens) {
            clear_tile(plan, workspace, tile_index, head);
        }
        if (tile.n_tokens == 0) {
            continue;
        }
        prepare_unit(p, tile, head, unit);
        prepare_prefetch(p, plan, tile_index + 1, head, unit);
        share.attend(tile, unit, head, tile_index * plan.tile_strips);
    }
    if (share.observed) {  // no thread walks the tiles outside the span
        for (int h = 0; h < p.n_head_kv; ++h) {
            for (int t = ith; t < plan.n_tiles; t += plan.n_threads) {
                if (t < span.first || t >= span.end) {
                    clear_tile(plan, workspace, t, h);
                }
            }
        }
    }
}

}  // namespace
}  // namespace edgekv
