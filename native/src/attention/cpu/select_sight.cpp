// Finds the cells that each token of a run sees, and those of them that it reads for certain.
//
// The first layer that selects reads the mask, the cells' positions and the pins. A node has no barrier inside, so each of its threads finds all
// sights in its own part of the workspace, and thread 0 copies them to the plane (HostPlane::sights). Later layers read the copy.
#include "attention/cpu/select_parts.h"
#include "cache/certain.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace edgekv {
namespace {

// A token reads for certain the first tokens, the newest ones, pinned ones, and cells without a sketch.
void find_sight(const SelectThread & thread, const char * token_mask, int token, Sight * sight) {
    const State &   ctx       = thread.ctx();
    const int       stream    = thread.stream;
    const auto &    options   = ctx.params.selection;
    const int32_t * newest    = ctx.pages.cells.newest(stream);
    const int32_t * oldest    = ctx.pages.cells.oldest(stream);
    const int32_t * positions = ctx.pages.cells.positions(stream);
    const auto      certain   = certain_positions(options.sink_tokens, options.recent_tokens, ctx.shape.page_tokens, thread.position(token));
    const MaskType  type      = mask_type(thread.node->src[SELECT_MASK]);

    for (int group = 0; group < thread.plan.n_groups; ++group) {
        const int first = group * kGroupCells;
        const int end   = std::min(first + kGroupCells, thread.plan.n_cells);

        sight[group] = { visible_cells(type, token_mask, first, end), ctx.pages.pins.of(stream, group) };
        if (sight[group].visible == 0) {
            continue;
        }
        for (int part = first; part < end; part += 16) {  // a page has a multiple of 16 cells
            const int page = part / ctx.shape.page_tokens;
            for (int c = part; certain.may_hold(oldest[page], newest[page]) && c < std::min(part + 16, end); ++c) {
                sight[group].certain |= static_cast<uint64_t>(certain.holds(positions[c])) << (c - first);
            }
        }
        if (thread.plan.scans && ctx.pages.stale.is_open(stream, group)) {
            sight[group].certain = ~uint64_t{0};
        }
        sight[group].certain &= sight[group].visible;
    }
}

template <class T>
uint64_t cells_unlike(const char * token_mask, int first, int end, T hidden) {
    const T * x     = reinterpret_cast<const T *>(token_mask) + first;
    uint64_t  cells = 0;
    for (int c = 0; c < end - first; ++c) {
        cells |= static_cast<uint64_t>(x[c] != hidden) << c;
    }
    return cells;
}

}  // namespace

const Sight * sights_of_head(const SelectThread & thread, const TokenSights & sights, int head, int first, int end) {
    const SelectPlan & plan  = thread.plan;
    const Drops &      drops = thread.plane().drops;
    if (!plan.keeps || !drops.any(thread.layer.index)) {
        return sights.of(0);
    }
    const uint8_t * dropped = drops.of(thread.layer.index, thread.stream, head);
    Sight * const   mine    = reinterpret_cast<Sight *>(thread.own() + plan.kept_offset);
    for (int group = first; group < end; ++group) {
        uint64_t kept = 0;
        for (int part = 0; part < kGroupCells && group * kGroupCells + part < plan.n_cells; part += 16) {  // a page has a multiple of 16 cells
            kept |= dropped[(group * kGroupCells + part) / thread.ctx().shape.page_tokens] ? 0 : uint64_t{0xffff} << part;
        }
        for (int token = 0; token < plan.n_tokens; ++token) {
            const Sight & all = sights.of(token)[group];
            mine[static_cast<size_t>(token) * plan.n_groups + group] = { all.visible & kept, all.certain & kept };
        }
    }
    return mine;
}

uint64_t visible_cells(MaskType type, const char * token_mask, int first, int end) {
    constexpr uint16_t kMinusInf = 0xfc00;
    return type == MaskType::f16 ? cells_unlike<uint16_t>(token_mask, first, end, kMinusInf) : cells_unlike<float>(token_mask, first, end, -INFINITY);
}

// Writes the sights of a run's tokens to `mine`.
static void find_sights(const SelectThread & thread, Sight * mine) {
    const ggml_tensor * mask     = thread.node->src[SELECT_MASK];
    const int           n_groups = thread.plan.n_groups;
    for (int token = 0; token < thread.plan.n_tokens; ++token) {
        Sight * const sight = mine + static_cast<size_t>(token) * n_groups;
        if (thread.leaves(token)) {
            std::fill_n(sight, n_groups, Sight{});
            continue;
        }
        const char * token_mask = static_cast<const char *>(mask->data) + thread.run.stream * mask->nb[3] + (thread.run.first + token) * mask->nb[1];
        find_sight(thread, token_mask, token, sight);
    }
}

int TokenSights::n_visible(int token) const {
    int n = 0;
    for (int group = 0; group < n_groups; ++group) {
        n += __builtin_popcountll(of(token)[group].visible);
    }
    return n;
}

TokenSights::TokenSights(const SelectThread & thread) : n_groups(thread.plan.n_groups) {
    Sight * const shared = reinterpret_cast<Sight *>(thread.plane().sights[thread.run.workspace].data());
    all = shared;
    if (thread.layer.nodes().leads) {
        Sight * const mine = reinterpret_cast<Sight *>(thread.own() + thread.plan.sight_offset);
        find_sights(thread, mine);
        if (thread.ith == 0) {
            std::memcpy(shared, mine, thread.plan.sight_bytes);
        }
        all = mine;
    }
    few = !thread.plan.keeps;
    for (int token = 0; token < thread.plan.n_tokens && few; ++token) {
        few = n_visible(token) <= thread.ctx().params.selection.exact_tokens;
    }
}

}  // namespace edgekv
