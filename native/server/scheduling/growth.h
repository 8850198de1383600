// Memory for the rows of the tokens that come next: for the patch `scheduling`. Decoding thread.
#pragma once

#include "llama-edgekv.h"
#include "llama-edgekv-pinned.h"
#include "server/prefix_cache/prefixes.h"
#include "server/scheduling/pace.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace edgekv_server {

constexpr const char * NO_MEMORY = "there is no memory for K and V of more tokens: this conversation ends here, others go on; try again when they have "
                                   "ended, or with a shorter text";

// tokens whose rows a slot needs before it is asked again: its whole prompt, or the next token with its draft
template <typename Slot>
int coming_tokens(const Slot & slot) {
    constexpr int DRAFT = 64;
    const int64_t left = tokens_left(slot);
    return left > 0 ? static_cast<int>(left) : 1 + std::clamp(slot.get_n_draft_max(), 0, DRAFT);
}

// The slots at work that find no memory for them. Kept rows in RAM go first, then conversations of idle slots, which may become such rows; the least recently
// used before others. What is pinned for a GPU gives no memory back, so these stay there. A slot's whole prompt is pinned before its first batch: a batch that
// is refused ends all answers.
template <typename Slots>
auto cannot_grow(Slots & slots, const llama_context * lctx) {
    using slot = typename Slots::value_type;
    std::vector<slot *> idle, ended;
    for (slot & s : slots) {
        if (!s.is_processing() && s.prompt.n_tokens() > 0) {
            idle.push_back(&s);
        }
    }
    std::sort(idle.begin(), idle.end(), [](const slot * a, const slot * b) { return a->t_last_used > b->t_last_used; });

    // sequences of one cache take the same memory
    std::vector<int> ids, coming;
    const auto growth   = [&] { return llama_edgekv_growth(lctx, ids.data(), coming.data(), static_cast<int>(ids.size())); };
    const auto may_take = [&] { return llama_edgekv_may_take(growth(), true); };
    for (slot & s : slots) {
        if (!s.is_processing() || !s.task) {
            continue;
        }
        ids.push_back(s.id);
        coming.push_back(coming_tokens(s));
        while (!llama_edgekv_pins_rows(lctx) && !may_take()) {
            if (edgekv_prefix_evict(growth())) {
                continue;
            }
            if (idle.empty()) {
                break;
            }
            idle.back()->prompt_clear();
            idle.pop_back();
        }
        if (!may_take() || !llama_edgekv_pin_tokens(lctx, ids.data(), coming.data(), static_cast<int>(ids.size()))) {
            ids.pop_back();
            coming.pop_back();
            ended.push_back(&s);
        }
    }
    return ended;
}

}  // namespace edgekv_server
