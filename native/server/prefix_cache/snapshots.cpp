#include "server/prefix_cache/snapshots.h"

#include "llama-edgekv.h"
#include "server/prefix_cache/cache.h"
#include "server/prefix_cache/media.h"

#include <algorithm>

namespace edgekv_server {

namespace {

constexpr int BEFORE_END = 4;  // the next turn may render a prompt's last tokens, which open the answer, differently
constexpr int LEAST      = 8;  // fewer tokens are read again just as fast

}  // namespace

void context_loaded(const llama_context * lctx, bool has_draft, int32_t & n_checkpoints) {
    the_cache().moves = llama_memory_can_shift(llama_get_memory(lctx)) && llama_edgekv_what_is_kept(lctx) == LLAMA_EDGEKV_KEEPS_ROWS;
    if (edgekv_prefixes_kept() && llama_edgekv_keeps_snapshots(lctx) && !has_draft) {
        n_checkpoints = 0;
    }
}

int goes_on(const edgekv_prefix_slot & slot, const server_tokens & prompt, int n_past) {
    auto * const memory = llama_get_memory(slot.lctx);
    const auto * model  = llama_get_model(slot.lctx);
    const bool   whole  = n_past == static_cast<int>(prompt.size());  // then the last token is read again
    const int    n      = prompt.pos_next(whole_media(prompt, whole ? n_past - 1 : n_past));
    if (n == llama_memory_seq_pos_max(memory, slot.seq_id) + 1) {
        return n_past;
    }
    if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model) || llama_edgekv_stream_of(slot.lctx, slot.seq_id) < 0) {
        return 0;
    }

    // the windows must still hold the oldest token that the next one sees
    return llama_memory_seq_pos_min(memory, slot.seq_id) <= std::max(0, n - llama_model_n_swa(model)) ? n_past : 0;
}

void plan_snapshots(const edgekv_prefix_slot & slot, int n, const server_tokens & prompt, int last_user, int spacing) {
    const int n_prompt = static_cast<int>(prompt.size());
    if (!slot.keeps || slot.partly) {
        return;
    }
    std::vector<int> wanted = { last_user, n_prompt - BEFORE_END };
    const bool whole = llama_edgekv_what_is_kept(slot.lctx) == LLAMA_EDGEKV_KEEPS_WHOLE;  // each snapshot holds the sequence up to its place
    for (int at = spacing; !whole && spacing > 0 && at < n_prompt; at += spacing) {
        if (at >= last_user || at + LEAST <= last_user) {  // otherwise it would replace the message's snapshot
            wanted.push_back(at);
        }
    }
    for (const auto & mark : known_of(slot.task).marks.marks) {
        wanted.push_back(std::min(mark.n, n_prompt - BEFORE_END));
    }
    std::sort(wanted.begin(), wanted.end());
    auto & due = edgekv_sequence_of(slot.seq_id).due;
    int before = n;
    for (const int token : wanted) {
        const int at = whole_media(prompt, token);
        if (at - before >= LEAST) {
            due.push_back(before = at);
        }
    }
}

int planned_before(const edgekv_prefix_slot & slot, int n) {
    const auto & sequence = edgekv_sequence_of(slot.seq_id);
    if (sequence.task != slot.task) {
        return 0;
    }
    const auto behind = std::upper_bound(sequence.due.begin(), sequence.due.end(), n);

    return behind == sequence.due.begin() ? 0 : behind[-1];
}

}  // namespace edgekv_server
