// One item of prompt attention, over the Simd of the translation unit that includes this and two products of its choice.
//
// Scores lie transposed: a lane is a query (a head of a token), and a vector holds the scores of 16 or 8 queries for one cell. So the softmax
// needs no sum or maximum across lanes, the products take rows of K and V as stored, and the sums over V are transposed once, at
// the end. Logits are in powers of two: the queries include a factor of log2(e).
#pragma once

#include <math.h>
#include <string.h>

#include "kernels/prefill/prompt_mass.h"
#include "kernels/prefill/prompt_products.h"
#include "kernels/prefill/prompt_scope.h"
#include "kernels/prefill/prompt_sight.h"
#include "kernels/prefill/prompt_softmax.h"
#include "kernels/prefill/prompt_wild.h"

namespace edgekv {
namespace {

template <class Keys, class Values>
class ItemRun : ItemScope {
public:
    ItemRun(const PromptProblem & problem, const PromptPlan & plan, int index, char * scratch) : ItemScope(problem, plan, index, scratch) {}

    void run() {
        begin();
        const int n_blocks = item.end_block - item.first_block;
        BlockSight sights[kMaxItemBlocks];
        for (int block = 0; block < plan.n_cell_blocks; ++block) {
            if (observes) {
                see_nothing(*this, block);
            }
            if (problem.raise != nullptr && problem.raise[block] < 0.0f) {
                continue;
            }
            const uint64_t kept = kept_cells(*this, block);
            uint64_t wanted = 0;
            for (int b = 0; b < n_blocks; ++b) {
                look(*this, block, b, kept, sights[b]);
                wanted |= sights[b].any;
            }
            if (wanted == 0) {
                continue;
            }
            keys.pack_k(cells_of(p.k_type, p.k, p.k_stride_cell, p.k_stride_head, block, wanted), at.k_channels, space + at.k);
            Cells values = cells_of(p.v_type, p.v, p.v_stride_cell, p.v_stride_head, block, wanted);
            const uint64_t wild = all_see(*this, sights, n_blocks, wanted) ? 0 : wild_cells(values);
            values.wanted &= ~wild;
            Values::pack_v(values, at.v_channels, space + at.v);
            attend(block, sights, n_blocks, values, wild);
        }
        finish();
    }

private:
    static constexpr int kMaxItemBlocks = 64;

    char * q_panel(int panel) const { return space + at.q + static_cast<size_t>(panel * kLanes * at.k_channels) * 4; }
    float * acc(int panel) const { return floats(at.acc) + panel * kLanes * at.v_channels; }

    void begin() {
        memset(space + at.acc, 0, sizeof(float) * static_cast<size_t>(n_panels * kLanes * at.v_channels));
        for (int r = 0; r < n_panels * kLanes; ++r) {
            floats(at.max)[r] = kNothing;
            floats(at.sum)[r] = 0.0f;
        }
        alignas(64) float queries[kLanes * kMaxHeadDim];
        for (int panel = 0; panel < n_panels; ++panel) {
            const int block = panel / block_panels, first = panel % block_panels * kLanes;
            const int n = tokens_of(block) * plan.group;
            memset(queries, 0, sizeof(float) * static_cast<size_t>(kLanes * at.k_channels));
            for (int r = 0; r < kLanes && first + r < n; ++r) {
                const char * src = p.q + static_cast<size_t>(token(block, (first + r) / plan.group)) * p.q_stride_token +
                                   static_cast<size_t>(item.head * plan.group + (first + r) % plan.group) * p.q_stride_head;
                float * query = queries + r * at.k_channels;
                const F scale = Simd::set1(p.scale * kLog2e);
                for (int i = 0; i < p.head_dim; i += kLanes) {
                    const int to = i < p.head_dim - kLanes ? i : p.head_dim - kLanes;
                    Simd::store(query + to, Simd::mul(Simd::load(src + to * 4), scale));
                }
            }
            keys.pack_q(queries, at.k_channels, q_panel(panel));
        }
    }

    Cells cells_of(CellType type, const char * data, size_t stride_cell, size_t stride_head, int block, uint64_t wanted) const {
        const int ahead = p.n_cells - (block + 1) * kPromptCells;
        return {type,   data + static_cast<size_t>(block * kPromptCells) * stride_cell + static_cast<size_t>(item.head) * stride_head,
                stride_cell, p.head_dim, wanted, ahead < kPromptCells ? ahead : kPromptCells, bytes_of_row(type, p.head_dim)};
    }

    void attend(int block, const BlockSight * sights, int n_blocks, const Cells & values, uint64_t wild) {
        Panels now;
        int index[kPromptPanels];
        const auto work = [&] {
            alignas(64) float factor[kPromptPanels][kLanes];
            keys.scores(space + at.k, at.k_channels, p.head_dim, now);
            for (int j = 0; j < now.n; ++j) {
                now.factor[j] = weigh(block, index[j], sights[index[j] / block_panels], now.scores[j], factor[j]) ? factor[j] : nullptr;
            }
            Values::add(space + at.v, at.v_channels, p.head_dim, now);
            for (int j = 0; j < now.n && wild != 0; ++j) {
                add_wild<Values>(*this, index[j], sights[index[j] / block_panels], values, wild, now.scores[j], now.acc[j]);
            }
            now.n = 0;
        };
        now.n = 0;
        for (int b = 0; b < n_blocks; ++b) {
            if (sights[b].any == 0) {
                continue;
            }
            const int n_filled = (tokens_of(b) * plan.group + kLanes - 1) / kLanes;  // a block of few tokens has panels without queries
            for (int panel = b * block_panels; panel < b * block_panels + n_filled; ++panel) {
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

    // Turns a panel's scores into weights relative to its running maxima. Returns whether the maxima moved; earlier sums then need `factor`.
    bool weigh(int block, int panel, const BlockSight & sight, float * scores, float * factor) {
        if (p.softcap != 0.0f) {
            for (int c = 0; c < kPromptCells; ++c) {
                Simd::store(scores + c * kLanes, vector_softcap(Simd::load(scores + c * kLanes), p.softcap * kLog2e));
            }
        }
        const bool all = !sight.biased && sees_all(*this, sight, panel);
        if (!all) {
            hide(*this, block, panel, sight, scores);
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
            const int query = (panel - (n_panels - block_panels)) * kLanes;
            for (int strip = 0; strip < kStrips; ++strip) {
                Simd::store(strip_sums(*this, block * kStrips + strip) + query, strips[strip]);
            }
            Simd::store(block_max(*this, block) + query, max);
        }
        return moved;
    }

    // The last factor of a query's sums: 1 over the sum of all weights, including the sink's.
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
            alignas(64) float of_query[kLanes];
            for (int r = 0; r < kLanes; ++r) {
                of_query[r] = share(panel, r);
            }
            memcpy(shares, of_query, sizeof(of_query));
            const F factor = Simd::load(of_query);
            const float * sums = acc(panel);
            char * outs[kLanes];
            for (int r = 0; r < kLanes && r < n; ++r) {
                outs[r] = p.out + static_cast<size_t>(token(block, (first + r) / plan.group)) * p.out_stride_token +
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
                    Simd::store(outs[r] + d * 4, x[r]);
                }
            }
        }
        if (observes) {
            add_mass(*this);
        }
    }

    Keys keys;
};

template <class Keys, class Values>
void attend_item(const PromptProblem & problem, const PromptPlan & plan, int item, char * scratch) {
    ItemRun<Keys, Values>(problem, plan, item, scratch).run();
}

}  // namespace
}  // namespace edgekv
