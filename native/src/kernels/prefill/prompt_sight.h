// The sight of an item's tokens: the mask, block by block.
#pragma once

#include <math.h>
#include <string.h>

#include "kernels/prefill/prompt_scope.h"
#include "kernels/prefill/prompt_softmax.h"

namespace edgekv {
namespace {

constexpr uint64_t kAllCells = ~uint64_t{0};

// The cells that a block of tokens sees of the block of cells at hand.
struct BlockSight {
    uint64_t cells[kPromptTokens];
    bool biased;  // a seen cell has a bias other than zero
    uint64_t any;
};

// The first n cells of a token's mask that are visible; `biased`: some of these are not zero.
inline uint64_t visible_of(MaskType type, const char * mask, int n, bool & biased) {
    const size_t bytes = type == MaskType::f16 ? 2 : 4;
    uint64_t cells = 0;
    for (int c = 0; c < n; c += kLanes) {
        alignas(64) char tail[kLanes * 4] = {};
        const char * from = mask + static_cast<size_t>(c) * bytes;
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

// Which cells of a block exist and are not dropped.
inline uint64_t kept_cells(const ItemScope & s, int block) {
    const int first = block * kPromptCells, n = s.p.n_cells - first;
    uint64_t kept = n >= kPromptCells ? kAllCells : (uint64_t{1} << n) - 1;
    if (s.problem.dropped != nullptr) {
        const uint8_t * dropped = s.problem.dropped + static_cast<size_t>(s.item.head) * s.problem.dropped_stride;
        for (int c = 0; c < kPromptCells && first + c < s.p.n_cells; c += kStripCells) {
            kept &= dropped[(first + c) / s.p.page_tokens] ? ~(uint64_t{0xffff} << c) : kAllCells;
        }
    }
    return kept;
}

// The sight of block b of the item's tokens in a block of cells.
inline void look(const ItemScope & s, int block, int b, uint64_t kept, BlockSight & sight) {
    const Seen seen = s.problem.seen[static_cast<size_t>(s.item.first_block + b) * s.problem.seen_stride + static_cast<size_t>(block)];
    sight.biased = false;
    sight.any = seen == Seen::nothing ? 0 : kept;
    if (seen == Seen::nothing) {
        return;
    }
    for (uint64_t & cells : sight.cells) {
        cells = kept;
    }
    if (seen == Seen::all || s.p.mask_type == MaskType::none) {
        return;
    }
    const int first = block * kPromptCells;
    const int n = s.p.n_cells - first < kPromptCells ? s.p.n_cells - first : kPromptCells;
    sight.any = 0;
    for (int t = 0; t < s.tokens_of(b); ++t) {
        const size_t offset = static_cast<size_t>(first) * (s.p.mask_type == MaskType::f16 ? 2 : 4);
        const char * mask = s.p.mask + static_cast<size_t>(s.token(b, t)) * s.p.mask_stride_token + offset;
        sight.cells[t] &= visible_of(s.p.mask_type, mask, n, sight.biased);
        sight.any |= sight.cells[t];
    }
}

inline bool sees_all(const ItemScope & s, const BlockSight & sight, int panel) {
    const int first = panel % s.block_panels * kLanes / s.plan.group;
    const int last = (panel % s.block_panels * kLanes + kLanes - 1) / s.plan.group;
    uint64_t both = kAllCells;
    for (int t = first; t <= last; ++t) {
        both &= t < kPromptTokens ? sight.cells[t] : 0;
    }
    return both == kAllCells;
}

// The bias of a panel's queries, transposed; in powers of two.
inline void fill_bias(const ItemScope & s, int block, int panel, const BlockSight & sight, float * bias) {
    const int b = panel / s.block_panels, first = panel % s.block_panels * kLanes, cell = block * kPromptCells;
    const int n = s.p.n_cells - cell < kPromptCells ? s.p.n_cells - cell : kPromptCells;
    alignas(64) float values[kPromptCells];
    for (int r = 0; r < kLanes; ++r) {
        const int t = (first + r) / s.plan.group;
        const bool exists = t < s.tokens_of(b);
        if (exists) {
            load_bias(s.p, s.token(b, t), cell, n, kPromptCells, values);
        }
        const float factor = kLog2e * alibi_slope(s.p, s.item.head * s.plan.group + (first + r) % s.plan.group);
        for (int c = 0; c < kPromptCells; ++c) {
            const float x = exists && sight.cells[t] >> c & 1 ? factor * values[c] : 0.0f;
            bias[c * kLanes + r] = x > -3e38f ? x : -3e38f;
        }
    }
}

// Adds the bias of visible cells to a panel's scores, and hides the others.
inline void hide(const ItemScope & s, int block, int panel, const BlockSight & sight, float * scores) {
    if (sight.biased) {
        float * bias = s.floats(s.at.bias);
        fill_bias(s, block, panel, sight, bias);
        for (int c = 0; c < kPromptCells; ++c) {
            Simd::store(scores + c * kLanes, Simd::add(Simd::load(scores + c * kLanes), Simd::load(bias + c * kLanes)));
        }
    }
    alignas(64) int32_t half[2][kLanes];
    bool whole = true;
    for (int r = 0; r < kLanes; ++r) {
        const int t = (panel % s.block_panels * kLanes + r) / s.plan.group;
        const uint64_t cells = t < s.tokens_of(panel / s.block_panels) ? sight.cells[t] : 0;
        half[0][r] = static_cast<int32_t>(cells & 0xffffffff);
        half[1][r] = static_cast<int32_t>(cells >> 32);
        whole = whole && cells == kAllCells;
    }
    if (whole) {
        return;
    }
    const F never = Simd::set1(-INFINITY);
    for (int h = 0; h < 2; ++h) {
        const I cells = Simd::iload(half[h]);
        for (int c = 0; c < 32; ++c) {
            float * of_cell = scores + (32 * h + c) * kLanes;
            Simd::store(of_cell, Simd::where_bits(cells, Simd::iset1(static_cast<int>(1u << c)), Simd::load(of_cell), never));
        }
    }
}

}  // namespace
}  // namespace edgekv
