// Gaps that dropped tokens leave in a sequence, and how they close: positions stay as callers count them, and K turns.
//
// After a closing, cells in the order of their positions are rotated by 0, 1, 2, ..., and new tokens by what follows. So rotary positions never
// exceed what the model was trained for, however long the sequence is. Sliding layers keep tokens that the plain cache has dropped: among the
// newest tokens, as far as a window reaches, gaps stay.
#include "llama-edgekv-access.h"

#include "llama-impl.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace {

// the plain cache with gaps, if it is a context's own
llama_kv_cache * with_gaps(const llama_context * lctx) {
    auto * kv = lctx ? llama_edgekv_access::cache(lctx) : nullptr;
    return kv && !llama_edgekv_access::is_guest(*kv) && llama_edgekv_access::gaps(*kv) ? kv : nullptr;
}

llama_edgekv_clock & clock_of(const llama_kv_cache & kv, uint32_t stream) {
    return llama_edgekv_access::clock(llama_edgekv_access::cells(kv, stream));
}

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

// A stream has one sequence, whose next tokens have the positions [first, last]: closes its gaps if these come too far.
void close_gaps(const llama_context * lctx, const llama_kv_cache & kv, uint32_t stream, llama_pos first, llama_pos last) {
    const auto positions = positions_of(llama_edgekv_access::cells(kv, stream));
    auto & known         = *clock_of(kv, stream).closed;
    known.end_at(std::min(positions.empty() ? -1 : positions.back(), first - 1));
    if (last - known.offset_of(last) < clock_of(kv, stream).n_positions) {
        return;
    }

    const auto * windows = llama_edgekv_access::besides(lctx).windows;
    const auto before = known;
    const auto closed = close(positions, first, windows ? static_cast<int32_t>(lctx->get_model().hparams.n_swa) : 0);
    known = closed;
    for (const llama_kv_cache * each : { &kv, windows }) {
        if (!each) {
            continue;
        }
        llama_kv_cells & cells = llama_edgekv_access::cells(*each, stream);
        for (uint32_t i = 0; i < cells.size(); ++i) {
            if (!cells.is_empty(i)) {
                llama_edgekv_access::turn(cells, i, before.offset_of(cells.pos_get(i)) - closed.offset_of(cells.pos_get(i)));
            }
        }
        clock_of(*each, stream).n_turned += clock_of(*each, stream).turns;
    }
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
    if (!kv || batch.n_tokens == 0 || !batch.pos || clock_of(*kv, 0).n_positions == 0) {
        return;
    }
    if (llama_edgekv_access::copies_wait(*kv)) {
        lctx->memory_update(false);  // K of a copied stream turns after it was copied
    }
    std::map<uint32_t, std::pair<llama_pos, llama_pos>> spans;  // by stream: first and last position
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        const auto [span, is_new] = spans.try_emplace(kv->get_stream(batch.seq_id[i][0]), batch.pos[i], batch.pos[i]);
        auto & [first, last] = span->second;
        first = std::min(first, batch.pos[i]);
        last  = std::max(last, batch.pos[i]);
    }
    for (const auto & [stream, span] : spans) {
        close_gaps(lctx, *kv, stream, span.first, span.second);
    }
}

const llama_ubatch * llama_edgekv_turned(const llama_ubatch * ubatch) {
    const auto * kv = with_gaps(llama_edgekv_current());
    if (!kv || !ubatch || !ubatch->pos) {
        return ubatch;
    }
    static thread_local std::vector<llama_pos> positions;
    static thread_local llama_ubatch turned;
    bool any = false;
    positions.resize(ubatch->n_tokens);
    for (uint32_t i = 0; i < ubatch->n_tokens; ++i) {
        const int32_t offset = clock_of(*kv, kv->get_stream(ubatch->seq_id[i][0])).offset_of(ubatch->pos[i]);
        positions[i] = ubatch->pos[i] - offset;
        any = any || offset != 0;
    }
    if (!any) {
        return ubatch;
    }
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
    const int n_cells    = static_cast<int>(kv->get_size());
    const int n_trained  = static_cast<int>(lctx->get_model().hparams.n_ctx_train);
    const bool turns     = llama_edgekv_access::can_turn(*kv) && (!windows || llama_edgekv_access::can_turn(*windows));
    for (uint32_t s = 0; s < llama_edgekv_access::n_streams(*kv); ++s) {
        llama_edgekv_clock & clock = clock_of(*kv, s);
        if (!clock.closed) {
            clock.closed = std::make_shared<llama_edgekv_closed>();
        }
        if (windows) {
            clock_of(*windows, s).closed = clock.closed;
        }
        clock.gaps        = true;
        clock.n_positions = !turns ? 0 : n_positions > 0 ? n_positions : n_cells + std::max(0, n_trained - n_cells)/2;
    }
}

bool llama_edgekv_closes_gaps(const llama_context * lctx) {
    const auto * kv = with_gaps(lctx);
    return kv && clock_of(*kv, 0).n_positions > 0;
}
