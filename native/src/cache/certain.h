// The tokens that a query token reads for certain in mode sparse. They follow from positions alone, wherever a conversation's cells lie.
#pragma once

#include <algorithm>
#include <cstdint>

namespace edgekv {

// Positions below `sink_end`, and positions from `recent_begin` on.
struct CertainPositions {
    int32_t sink_end, recent_begin;

    bool holds(int32_t position) const { return position < sink_end || position >= recent_begin; }
    bool may_hold(int32_t oldest, int32_t newest) const { return oldest < sink_end || newest >= recent_begin; }
};

// The whole runs of page_tokens positions that hold one of the first sink_tokens, or one of the newest recent_tokens up to and including `position`
// (at least `position` itself).
inline CertainPositions certain_positions(int sink_tokens, int recent_tokens, int page_tokens, int32_t position) {
    const int32_t first = std::max(0, position + 1 - std::max(recent_tokens, 1));
    return { (sink_tokens + page_tokens - 1) / page_tokens * page_tokens, first / page_tokens * page_tokens };
}

}  // namespace edgekv
