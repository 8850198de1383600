// Gaps that dropped tokens leave in a sequence, and how they close: positions stay as callers count them, and K turns.
//
// After a closing, cells in the order of their positions are rotated by 0, 1, 2, ..., and new tokens by what follows. So rotary positions never
// exceed what the model was trained for, however long the sequence is. Sliding layers keep tokens that the plain cache has dropped: among the
// newest tokens, as far as a window reaches, gaps stay.
#include "llama-edgekv-access.h"

#include "llama-impl.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace {

// the plain cache with gaps, if it is a context's own
llama_kv_cache * with_gaps(const llama_context * lctx) {
    auto * kv = lctx ? llama_edgekv_access::cache(lctx) : nullptr;
    return kv && !llama_edgekv_access::is_guest(*kv) && llama_edgekv_access::gaps(*kv) ? kv : nullptr;
}

llama_edgekv_clock & clock_of(const llama_kv_cache & kv) { return llama_edgekv_access::clock(llama_edgekv_access::cells(kv, 0)); }

std::vector<llama_pos> positions_of(const llama_kv_cells & cells) {
    std::vector<llama_pos> found;
    for (uint32_t i = 0; i < cells.size(); ++i) {
        if (!cells.is_empty(i)) {
            found.push_back(cells.pos_get(i));
        }
    }
    std::sort(found.begin(), found.end());
    return found;
}

// Closes the gaps between these positions, and the one before position `next`. window: so many of the newest positions keep theirs.
llama_edgekv_closed close(const std::vector<llama_pos> & positions, llama_pos next, int32_t window) {
    const llama_pos newest = positions.empty() ? -1 : positions.back();
    llama_edgekv_closed closed;
    llama_pos before = -1, rotated = -1;
    const auto follow = [&](llama_pos p) {
        const bool stays      = window > 0 && p > newest - window;
        const llama_pos first = stays ? std::max(before, newest - window) + 1 : p;  // from here on as p
        rotated += p - first + 1;
        closed.add(first, p - rotated);
        before = p;
    };
    std::for_each(positions.begin(), positions.end(), follow);
    follow(next);
    return closed;
}

}  // namespace

//
// call sites
//

bool llama_edgekv_has_gaps(const llama_memory_i * memory) {
    auto * kv = llama_edgekv_access::cache(const_cast<llama_memory_i *>(memory));
    return kv && llama_edgekv_access::gaps(*kv);
}

void llama_edgekv_close_gaps(llama_context * lctx, const llama_batch & batch) {
    const auto * kv = with_gaps(lctx);
    if (!kv || batch.n_tokens == 0 || !batch.pos || clock_of(*kv).n_positions == 0) {
        return;
    }
    const auto [first, last] = std::minmax_element(batch.pos, batch.pos + batch.n_tokens);
    const auto positions     = positions_of(llama_edgekv_access::cells(*kv, 0));
    auto & known             = *clock_of(*kv).closed;
    known.end_at(std::min(positions.empty() ? -1 : positions.back(), *first - 1));
    if (*last - known.offset_of(*last) < clock_of(*kv).n_positions) {
        return;
    }

    auto * windows    = llama_edgekv_access::besides(lctx).windows;
    const auto before = known;
    const auto closed = close(positions, *first, windows ? static_cast<int32_t>(lctx->get_model().hparams.n_swa) : 0);
    known = closed;
    for (const llama_kv_cache * each : { kv, static_cast<const llama_kv_cache *>(windows) }) {
        if (!each) {
            continue;
        }
        llama_kv_cells & cells = llama_edgekv_access::cells(*each, 0);
        for (uint32_t i = 0; i < cells.size(); ++i) {
            if (!cells.is_empty(i)) {
                llama_edgekv_access::turn(cells, i, before.offset_of(cells.pos_get(i)) - closed.offset_of(cells.pos_get(i)));
            }
        }
        clock_of(*each).n_turned += clock_of(*each).turns;
    }
}

const llama_ubatch * llama_edgekv_turned(const llama_ubatch * ubatch) {
    const auto * kv = with_gaps(llama_edgekv_current());
    if (!kv || !ubatch || !ubatch->pos || clock_of(*kv).closed->empty()) {
        return ubatch;
    }
    static thread_local std::vector<llama_pos> positions;
    static thread_local llama_ubatch turned;
    const auto & closed = *clock_of(*kv).closed;
    positions.resize(ubatch->n_tokens);
    std::transform(ubatch->pos, ubatch->pos + ubatch->n_tokens, positions.begin(), [&](llama_pos p) { return p - closed.offset_of(p); });
    turned     = *ubatch;
    turned.pos = positions.data();
    return &turned;
}

//
// exports
//

void llama_edgekv_allow_gaps(llama_context * lctx, int n_positions) {
    auto * kv = llama_edgekv_access::cache(lctx);
    if (!kv || llama_edgekv_access::is_guest(*kv)) {
        return;
    }
    const auto * windows = llama_edgekv_access::besides(lctx).windows;
    if (!clock_of(*kv).closed) {
        clock_of(*kv).closed = std::make_shared<llama_edgekv_closed>();
    }
    if (windows) {
        clock_of(*windows).closed = clock_of(*kv).closed;
    }
    llama_edgekv_access::gaps(*kv) = true;

    const int n_cells    = static_cast<int>(kv->get_size());
    const int n_trained  = static_cast<int>(lctx->get_model().hparams.n_ctx_train);
    const bool turns     = llama_edgekv_access::can_turn(*kv) && (!windows || llama_edgekv_access::can_turn(*windows));
    clock_of(*kv).n_positions = !turns ? 0 : n_positions > 0 ? n_positions : n_cells + std::max(0, n_trained - n_cells)/2;
}

bool llama_edgekv_closes_gaps(const llama_context * lctx) {
    const auto * kv = with_gaps(lctx);
    return kv && clock_of(*kv).n_positions > 0;
}
