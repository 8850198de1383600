// One item of prompt attention, over the Simd of the translation unit that includes this and two products of its choice.
//
// Scores lie transposed: a lane is a row (a query head of a token), and a vector holds what 16 or 8 rows give one cell. So the softmax
// needs no sum or maximum across lanes, K and V enter the products as rows just as they are stored, and the sums over V are transposed
// once, at the end. Logits are in powers of two: the queries carry log2(e).
#pragma once

#include <math.h>
#include <string.h>

#include "kernels/attend/attend_softmax.h"
#include "kernels/prompt/prompt_internal.h"

namespace edgekv {
namespace {

constexpr float kLog2e = 1.44269504f;
constexpr float kNothing = -INFINITY;  // the maximum of a row that has seen nothing; what is relative to it is not a number, and counts as 0
// A running maximum follows only when it is left so far behind that the weights, relative to it, would outgrow this power of two.
constexpr float kLazy = 8.0f;
constexpr int kStrips = kPromptCells / kStripCells;

// 2^x for x <= 127, to 1e-4 (Degree 3) or 1e-7 (5); 0 from -127 down, and for what is not a number. Minimax polynomials of (2^r - 1) / r over |r| <= 1/2.
template <int Degree>
inline F exp2_of(F x) {
    x = Simd::max(x, Simd::set1(-127.0f));
    const I n = Simd::to_int(x);
    const F r = Simd::sub(x, Simd::to_float(n));
    F poly;
    if constexpr (Degree == 3) {
        poly = Simd::fma(Simd::set1(0.0550089329f), r, Simd::set1(0.242210969f));
        poly = Simd::fma(poly, r, Simd::set1(0.693282902f));
    } else {
        poly = Simd::fma(Simd::set1(0.00132647273f), r, Simd::set1(0.00967151299f));
        poly = Simd::fma(poly, r, Simd::set1(0.0555073358f));
        poly = Simd::fma(poly, r, Simd::set1(0.240222424f));
        poly = Simd::fma(poly, r, Simd::set1(0.693147004f));
    }
    return Simd::as_float(Simd::iadd(Simd::as_int(Simd::fma(poly, r, Simd::set1(1.0f))), Simd::template left<23>(n)));
}

// Channels [i, i + kLanes) of a row of K or V.
inline F load_channels(CellType type, const char * row, int i) {
    if (type == CellType::f16) {
        return Simd::load_f16(row + 2 * i);
    }
    const char * block = row + i / kBlock * kBlockBytes;
    return Simd::mul(Simd::load_i8(block + 2 + i % kBlock), Simd::dup_f16(block));
}

// The cells of a block, as they come to the products.
struct Cells {
    CellType type;
    const char * first;
    size_t stride;
    int head_dim;
    uint64_t wanted;  // the others count as zeros
    int n_ahead;      // cells of the next block, on their way while this one is at work
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

// Rows of floats [64][channels]; what lies behind the head's channels says nothing.
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
            Simd::store(to + at, load_channels(cells.type, row, at));
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
        F row[NV];
        EDGEKV_UNROLL
        for (int j = 0; j < NV; ++j) {
            row[j] = Simd::load(b[j] + k * kLanes);
        }
        EDGEKV_UNROLL
        for (int i = 0; i < MR; ++i) {
            const F x = Simd::set1(a[i * ai + k * ak]);
            EDGEKV_UNROLL
            for (int j = 0; j < NV; ++j) {
                c[i][j] = Simd::fma(x, row[j], c[i][j]);
            }
        }
    }
}

// The panels that are at work, at most kPromptPanels.
struct Panels {
    int n;
    const char * q[kPromptPanels];
    float * scores[kPromptPanels];  // [64][kLanes], then the weights in the form of the second product
    float * acc[kPromptPanels];     // [v_channels][kLanes]
    const float * factor[kPromptPanels];  // [kLanes] for what acc holds, or null
};

constexpr int panels_at_most(int n) { return n < Simd::kPromptPanels ? n : Simd::kPromptPanels; }

// Scores in single precision.
struct KeysF32 {
    static constexpr int kPanels = Simd::kPromptPanels;

    // rows [kLanes][k_channels], to a panel
    static void pack_q(const float * rows, int channels, char * panel) {
        for (int d = 0; d < channels; d += kLanes) {
            F x[kLanes];
            EDGEKV_UNROLL
            for (int r = 0; r < kLanes; ++r) {
                x[r] = Simd::load(rows + r * channels + d);
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
        constexpr int rows = Simd::prompt_rows(NV);
        const float * q[NV];
        for (int j = 0; j < NV; ++j) {
            q[j] = reinterpret_cast<const float *>(p.q[j]);
        }
        for (int c = 0; c < kPromptCells; c += rows) {
            F s[rows][NV];
            multiply<rows, NV>(k + c * channels, channels, 1, q, head_dim, s);
            for (int i = 0; i < rows; ++i) {
                for (int j = 0; j < NV; ++j) {
                    Simd::store(p.scores[j] + (c + i) * kLanes, s[i][j]);
                }
            }
        }
    }
    static void scores(const char * k, int channels, int head_dim, const Panels & p) {
        const float * x = reinterpret_cast<const float *>(k);
        switch (p.n) {
            case 1: return scores_of<1>(x, channels, head_dim, p);
            case 2: return scores_of<panels_at_most(2)>(x, channels, head_dim, p);
            case 3: return scores_of<panels_at_most(3)>(x, channels, head_dim, p);
        }
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

    template <int NV>
    static void add_of(const float * v, int channels, int head_dim, const Panels & p) {
        constexpr int rows = Simd::prompt_rows(NV);
        for (int d = 0; d < head_dim; d += rows) {
            F sums[rows][NV];
            multiply<rows, NV>(v + d, 1, channels, p.scores, kPromptCells, sums);
            for (int j = 0; j < NV; ++j) {
                float * acc = p.acc[j] + d * kLanes;
                const F factor = p.factor[j] ? Simd::load(p.factor[j]) : Simd::set1(1.0f);
                for (int i = 0; i < rows; ++i) {
                    Simd::store(acc + i * kLanes, Simd::fma(Simd::load(acc + i * kLanes), factor, sums[i][j]));
                }
            }
        }
    }
    static void add(const char * v, int channels, int head_dim, const Panels & p) {
        const float * x = reinterpret_cast<const float *>(v);
        switch (p.n) {
            case 1: return add_of<1>(x, channels, head_dim, p);
            case 2: return add_of<panels_at_most(2)>(x, channels, head_dim, p);
            case 3: return add_of<panels_at_most(3)>(x, channels, head_dim, p);
        }
    }
};

// What a block of tokens sees of the block of cells at hand.
struct BlockSight {
    uint64_t cells[kPromptTokens];
    bool biased;  // some that is seen has a bias that is not zero
    uint64_t any;
};

// The first n cells of a row of the mask that are visible; `biased`: some of these are not zero.
inline uint64_t visible_of(MaskType type, const char * row, int n, bool & biased) {
    const size_t bytes = type == MaskType::f16 ? 2 : 4;
    uint64_t cells = 0;
    for (int c = 0; c < n; c += kLanes) {
        alignas(64) char tail[kLanes * 4] = {};
        const char * from = row + static_cast<size_t>(c) * bytes;
        if (c + kLanes > n) {
            memcpy(tail, from, static_cast<size_t>(n - c) * bytes);
            from = tail;
        }
        const F bias = type == MaskType::f16 ? Simd::load_f16(from) : Simd::load(from);
        const unsigned visible = Simd::visible_bits(bias);
        biased = biased || (visible & Simd::lanes_differ(Simd::as_int(bias), Simd::izero())) != 0;
        cells |= static_cast<uint64_t>(visible) << c;
    }
    return cells;
}

template <class Keys, class Values>
class ItemRun {
public:
    ItemRun(const PromptProblem & problem, const PromptPlan & plan, int index, char * scratch)
        : problem(problem), p(problem.attend), plan(plan), at(prompt_layout(p, plan)), item(prompt_item(plan, p.n_head_kv, index)),
          space(scratch), block_panels(at.block_rows / kLanes), n_panels((item.end_block - item.first_block) * block_panels),
          observes((p.mass_max != nullptr || p.mass_sum != nullptr) && item.end_block == plan.n_token_blocks) {}

    void run() {
        begin();
        const int n_blocks = item.end_block - item.first_block;
        BlockSight sights[kMaxItemBlocks];
        for (int block = 0; block < plan.n_cell_blocks; ++block) {
            if (observes) {
                see_nothing(block);
            }
            if (problem.raise != nullptr && problem.raise[block] < 0.0f) {
                continue;
            }
            const uint64_t kept = kept_cells(block);
            uint64_t wanted = 0;
            for (int b = 0; b < n_blocks; ++b) {
                look(block, b, kept, sights[b]);
                wanted |= sights[b].any;
            }
            if (wanted == 0) {
                continue;
            }
            keys.pack_k(cells_of(p.k_type, p.k, p.k_stride_cell, p.k_stride_head, block, wanted), at.k_channels, space + at.k);
            Values::pack_v(cells_of(p.v_type, p.v, p.v_stride_cell, p.v_stride_head, block, wanted), at.v_channels, space + at.v);
            attend(block, sights, n_blocks);
        }
        finish();
    }

private:
    static constexpr int kMaxItemBlocks = 64;
    static constexpr uint64_t kAll = ~uint64_t{0};

    float * floats(size_t offset) const { return reinterpret_cast<float *>(space + offset); }
    char * q_panel(int panel) const { return space + at.q + static_cast<size_t>(panel * kLanes * at.k_channels) * 4; }
    float * acc(int panel) const { return floats(at.acc) + panel * kLanes * at.v_channels; }
    int token(int block, int t) const { return prompt_first_token(p.n_tokens, item.first_block + block) + t; }
    int tokens_of(int block) const { return token(block + 1, 0) - token(block, 0); }

    void begin() {
        memset(space + at.acc, 0, sizeof(float) * static_cast<size_t>(n_panels * kLanes * at.v_channels));
        for (int r = 0; r < n_panels * kLanes; ++r) {
            floats(at.max)[r] = kNothing;
            floats(at.sum)[r] = 0.0f;
        }
        alignas(64) float rows[kLanes * kMaxHeadDim];
        for (int panel = 0; panel < n_panels; ++panel) {
            const int block = panel / block_panels, first = panel % block_panels * kLanes;
            const int n = tokens_of(block) * plan.group;
            memset(rows, 0, sizeof(float) * static_cast<size_t>(kLanes * at.k_channels));
            for (int r = 0; r < kLanes && first + r < n; ++r) {
                const char * src = p.q + static_cast<size_t>(token(block, (first + r) / plan.group)) * p.q_stride_token +
                                   static_cast<size_t>(item.head * plan.group + (first + r) % plan.group) * p.q_stride_head;
                float * row = rows + r * at.k_channels;
                const F scale = Simd::set1(p.scale * kLog2e);
                for (int i = 0; i < p.head_dim; i += kLanes) {
                    const int to = i < p.head_dim - kLanes ? i : p.head_dim - kLanes;
                    Simd::store(row + to, Simd::mul(Simd::load(src + to * 4), scale));
                }
            }
            keys.pack_q(rows, at.k_channels, q_panel(panel));
        }
    }

    // Which cells of a block exist and are not dropped.
    uint64_t kept_cells(int block) const {
        const int first = block * kPromptCells, n = p.n_cells - first;
        uint64_t kept = n >= kPromptCells ? kAll : (uint64_t{1} << n) - 1;
        if (problem.dropped != nullptr) {
            const uint8_t * dropped = problem.dropped + static_cast<size_t>(item.head) * problem.dropped_stride;
            for (int c = 0; c < kPromptCells && first + c < p.n_cells; c += kStripCells) {
                kept &= dropped[(first + c) / p.page_tokens] ? ~(uint64_t{0xffff} << c) : kAll;
            }
        }
        return kept;
    }

    void look(int block, int b, uint64_t kept, BlockSight & sight) const {
        const Seen seen = problem.seen[static_cast<size_t>(item.first_block + b) * problem.seen_stride + static_cast<size_t>(block)];
        sight.biased = false;
        sight.any = seen == Seen::nothing ? 0 : kept;
        if (seen == Seen::nothing) {
            return;
        }
        for (uint64_t & cells : sight.cells) {
            cells = kept;
        }
        if (seen == Seen::all || p.mask_type == MaskType::none) {
            return;
        }
        const int first = block * kPromptCells;
        const int n = p.n_cells - first < kPromptCells ? p.n_cells - first : kPromptCells;
        sight.any = 0;
        for (int t = 0; t < tokens_of(b); ++t) {
            const size_t offset = static_cast<size_t>(first) * (p.mask_type == MaskType::f16 ? 2 : 4);
            const char * row = p.mask + static_cast<size_t>(token(b, t)) * p.mask_stride_token + offset;
            sight.cells[t] &= visible_of(p.mask_type, row, n, sight.biased);
            sight.any |= sight.cells[t];
        }
    }

    Cells cells_of(CellType type, const char * data, size_t stride_cell, size_t stride_head, int block, uint64_t wanted) const {
        const int ahead = p.n_cells - (block + 1) * kPromptCells;
        const int row_bytes = type == CellType::f16 ? p.head_dim * 2 : p.head_dim / kBlock * kBlockBytes;
        return {type,   data + static_cast<size_t>(block * kPromptCells) * stride_cell + static_cast<size_t>(item.head) * stride_head,
                stride_cell, p.head_dim, wanted, ahead < kPromptCells ? ahead : kPromptCells, row_bytes};
    }

    void attend(int block, const BlockSight * sights, int n_blocks) {
        Panels now;
        int index[kPromptPanels];
        const auto work = [&] {
            alignas(64) float factor[kPromptPanels][kLanes];
            keys.scores(space + at.k, at.k_channels, p.head_dim, now);
            for (int j = 0; j < now.n; ++j) {
                now.factor[j] = weigh(block, index[j], sights[index[j] / block_panels], now.scores[j], factor[j]) ? factor[j] : nullptr;
            }
            Values::add(space + at.v, at.v_channels, p.head_dim, now);
            now.n = 0;
        };
        now.n = 0;
        for (int b = 0; b < n_blocks; ++b) {
            if (sights[b].any == 0) {
                continue;
            }
            for (int panel = b * block_panels; panel < (b + 1) * block_panels; ++panel) {
                now.q[now.n] = q_panel(panel);
                now.scores[now.n] = floats(at.scores) + now.n * kPromptCells * kLanes;
                now.acc[now.n] = acc(panel);
                index[now.n++] = panel;
                if (now.n == Keys::kPanels) {
                    work();
                }
            }
        }
        if (now.n > 0) {
            work();
        }
    }

    // The bias of a panel's rows, transposed; in powers of two.
    void fill_bias(int block, int panel, const BlockSight & sight, float * bias) const {
        const int b = panel / block_panels, first = panel % block_panels * kLanes;
        for (int r = 0; r < kLanes; ++r) {
            const int t = (first + r) / plan.group;
            for (int c = 0; c < kPromptCells; ++c) {
                float x = 0.0f;
                if (t < tokens_of(b) && sight.cells[t] >> c & 1) {
                    const char * row = p.mask + static_cast<size_t>(token(b, t)) * p.mask_stride_token;
                    x = kLog2e * one_bias(row, block * kPromptCells + c);
                    x = x > -3e38f ? x : -3e38f;
                }
                bias[c * kLanes + r] = x;
            }
        }
    }
    float one_bias(const char * row, int cell) const {
        if (p.mask_type == MaskType::f16) {
            char half[2 * kLanes] = {};
            memcpy(half, row + static_cast<size_t>(cell) * 2, 2);
            alignas(64) float x[kLanes];
            Simd::store(x, Simd::load_f16(half));
            return x[0];
        }
        float x;
        memcpy(&x, row + static_cast<size_t>(cell) * 4, 4);
        return x;
    }

    void hide(int block, int panel, const BlockSight & sight, float * scores) {
        if (sight.biased) {
            float * bias = floats(at.bias);
            fill_bias(block, panel, sight, bias);
            for (int c = 0; c < kPromptCells; ++c) {
                Simd::store(scores + c * kLanes, Simd::add(Simd::load(scores + c * kLanes), Simd::load(bias + c * kLanes)));
            }
        }
        alignas(64) int32_t half[2][kLanes];
        bool whole = true;
        for (int r = 0; r < kLanes; ++r) {
            const int t = (panel % block_panels * kLanes + r) / plan.group;
            const uint64_t cells = t < tokens_of(panel / block_panels) ? sight.cells[t] : 0;
            half[0][r] = static_cast<int32_t>(cells & 0xffffffff);
            half[1][r] = static_cast<int32_t>(cells >> 32);
            whole = whole && cells == kAll;
        }
        if (whole) {
            return;
        }
        const F never = Simd::set1(-INFINITY);
        for (int h = 0; h < 2; ++h) {
            const I cells = Simd::iload(half[h]);
            for (int c = 0; c < 32; ++c) {
                float * s = scores + (32 * h + c) * kLanes;
                Simd::store(s, Simd::where_bits(cells, Simd::iset1(static_cast<int>(1u << c)), Simd::load(s), never));
            }
        }
    }

    // Turns a panel's scores into weights relative to its running maxima. Whether these moved: then `factor` is what the sums so far
    // have to be multiplied with.
    bool weigh(int block, int panel, const BlockSight & sight, float * scores, float * factor) {
        if (p.softcap != 0.0f) {
            for (int c = 0; c < kPromptCells; ++c) {
                Simd::store(scores + c * kLanes, vector_softcap(Simd::load(scores + c * kLanes), p.softcap * kLog2e));
            }
        }
        const bool all = !sight.biased && sees_all(sight, panel);
        if (!all) {
            hide(block, panel, sight, scores);
        }
        F tops[4];
        EDGEKV_UNROLL
        for (int i = 0; i < 4; ++i) {
            tops[i] = Simd::load(scores + i * kLanes);
        }
        for (int c = 4; c < kPromptCells; c += 4) {
            EDGEKV_UNROLL
            for (int i = 0; i < 4; ++i) {
                tops[i] = Simd::max(tops[i], Simd::load(scores + (c + i) * kLanes));
            }
        }
        const F raise = Simd::set1(problem.raise != nullptr ? problem.raise[block] : 0.0f);
        const F top = Simd::add(Simd::max(Simd::max(tops[0], tops[1]), Simd::max(tops[2], tops[3])), raise);
        float * const maxima = floats(at.max) + panel * kLanes;
        float * const sums = floats(at.sum) + panel * kLanes;
        F max = Simd::load(maxima), sum = Simd::load(sums);
        const bool moved = Simd::any_above(top, Simd::add(max, Simd::set1(kLazy)));
        if (moved) {
            const F higher = Simd::max(max, top);
            const F less = exp2_of<5>(Simd::sub(max, higher));
            Simd::store(factor, less);
            Simd::store(maxima, higher);
            sum = Simd::mul(sum, less);
            max = higher;
        }
        const F base = Simd::sub(max, raise);
        F strips[kStrips];
        EDGEKV_UNROLL
        for (int strip = 0; strip < kStrips; ++strip) {
            F even = Simd::zero(), odd = Simd::zero();
            for (int c = strip * kStripCells; c < (strip + 1) * kStripCells; c += 2) {
                F x = exp2_of<Values::kDegree>(Simd::sub(Simd::load(scores + c * kLanes), base));
                F y = exp2_of<Values::kDegree>(Simd::sub(Simd::load(scores + (c + 1) * kLanes), base));
                Values::put(scores, c, x, y);
                even = Simd::add(even, x);
                odd = Simd::add(odd, y);
            }
            strips[strip] = Simd::add(even, odd);
        }
        Simd::store(sums, Simd::add(sum, Simd::add(Simd::add(strips[0], strips[1]), Simd::add(strips[2], strips[3]))));
        if (observes && panel >= n_panels - block_panels) {
            const int row = (panel - (n_panels - block_panels)) * kLanes;
            for (int strip = 0; strip < kStrips; ++strip) {
                Simd::store(strip_sums(block * kStrips + strip) + row, strips[strip]);
            }
            Simd::store(block_max(block) + row, max);
        }
        return moved;
    }

    bool sees_all(const BlockSight & sight, int panel) const {
        const int first = panel % block_panels * kLanes / plan.group;
        const int last = (panel % block_panels * kLanes + kLanes - 1) / plan.group;
        uint64_t both = kAll;
        for (int t = first; t <= last; ++t) {
            both &= t < kPromptTokens ? sight.cells[t] : 0;
        }
        return both == kAll;
    }

    float * strip_sums(int strip) const { return floats(at.strip_sums) + static_cast<size_t>(strip) * static_cast<size_t>(at.block_rows); }
    float * block_max(int block) const { return floats(at.block_max) + static_cast<size_t>(block) * static_cast<size_t>(at.block_rows); }

    void see_nothing(int block) {
        memset(strip_sums(block * kStrips), 0, sizeof(float) * static_cast<size_t>(kStrips * at.block_rows));
        for (int r = 0; r < at.block_rows; ++r) {
            block_max(block)[r] = kNothing;
        }
    }

    // What a row's sums have to be multiplied with: 1 over all weights, the sink's among them.
    float share(int panel, int r) const {
        const float max = floats(at.max)[panel * kLanes + r], sum = floats(at.sum)[panel * kLanes + r];
        if (p.sinks == nullptr) {
            return sum > 0.0f ? 1.0f / sum : 0.0f;
        }
        const float sink = p.sinks[item.head * plan.group + (panel % block_panels * kLanes + r) % plan.group] * kLog2e;
        const float top = sink > max ? sink : max;
        return exp2f(max - top) / (sum * exp2f(max - top) + exp2f(sink - top));
    }

    void finish() {
        for (int panel = 0; panel < n_panels; ++panel) {
            const int block = panel / block_panels, first = panel % block_panels * kLanes;
            const int n = tokens_of(block) * plan.group - first;
            float * const shares = floats(at.sum) + panel * kLanes;
            alignas(64) float of_row[kLanes];
            for (int r = 0; r < kLanes; ++r) {
                of_row[r] = share(panel, r);
            }
            memcpy(shares, of_row, sizeof(of_row));
            const F factor = Simd::load(of_row);
            const float * sums = acc(panel);
            char * rows[kLanes];
            for (int r = 0; r < kLanes && r < n; ++r) {
                rows[r] = p.out + static_cast<size_t>(token(block, (first + r) / plan.group)) * p.out_stride_token +
                          static_cast<size_t>(item.head * plan.group + (first + r) % plan.group) * p.out_stride_head;
            }
            for (int i = 0; i < p.head_dim; i += kLanes) {
                const int d = i < p.head_dim - kLanes ? i : p.head_dim - kLanes;
                F x[kLanes];
                EDGEKV_UNROLL
                for (int k = 0; k < kLanes; ++k) {
                    x[k] = Simd::mul(Simd::load(sums + (d + k) * kLanes), factor);
                }
                Simd::transpose(x);
                EDGEKV_UNROLL
                for (int r = 0; r < kLanes && r < n; ++r) {
                    Simd::store(rows[r] + d * 4, x[r]);
                }
            }
        }
        if (observes) {
            observe();
        }
    }

    // Adds the last block's weights, by page: their maximum and sum over a token's heads.
    void observe() {
        const int first = (n_panels - block_panels) * kLanes, n_tokens = tokens_of(item.end_block - item.first_block - 1);
        const int per_page = p.page_tokens / kStripCells, n_strips = (p.n_cells + kStripCells - 1) / kStripCells;
        const int n_pages = (p.n_cells + p.page_tokens - 1) / p.page_tokens;
        float * const mass = floats(at.q);  // no longer needed: [block_rows]
        for (int page = 0; page < n_pages; ++page) {
            memset(mass, 0, sizeof(float) * static_cast<size_t>(at.block_rows));
            for (int strip = page * per_page; strip < (page + 1) * per_page && strip < n_strips; ++strip) {
                const float * tops = block_max(strip / kStrips);
                for (int r = 0; r < at.block_rows; r += kLanes) {
                    const F apart = Simd::sub(Simd::load(tops + r), Simd::load(floats(at.max) + first + r));
                    const F weight = Simd::mul(exp2_of<5>(apart), Simd::load(floats(at.sum) + first + r));
                    Simd::store(mass + r, Simd::fma(Simd::load(strip_sums(strip) + r), weight, Simd::load(mass + r)));
                }
            }
            float top_sum = 0.0f, sum = 0.0f;
            for (int t = 0; t < n_tokens; ++t) {
                float top = 0.0f;
                for (int g = 0; g < plan.group; ++g) {
                    const float x = mass[t * plan.group + g];
                    top = x > top ? x : top;
                    sum += x;
                }
                top_sum += top;
            }
            const size_t to = static_cast<size_t>(item.head) * p.mass_stride + static_cast<size_t>(page);
            if (p.mass_max != nullptr) {
                p.mass_max[to] += top_sum;
            }
            if (p.mass_sum != nullptr) {
                p.mass_sum[to] += sum;
            }
        }
    }

    const PromptProblem & problem;
    const AttendProblem & p;
    const PromptPlan & plan;
    const PromptLayout at;
    const PromptItem item;
    char * const space;
    Keys keys;
    const int block_panels;  // of a block of tokens
    const int n_panels;
    const bool observes;
};

}  // namespace
}  // namespace edgekv
