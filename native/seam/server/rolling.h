// What leaves a context that is full: whole oldest exchanges, each a user's message and all that answers it. The system prompt, pinned exchanges
// and the newest one stay. Prompts roll on the thread of their request, before they are posted; answers on the thread that decodes. What leaves
// follows from the length of the whole conversation, in steps of a quarter of the context, so that several turns have the same beginning.
#pragma once

#include "server-task.h"

#include <unordered_set>
#include <vector>

// Before a server starts. Off: a prompt that does not fit is refused, and an answer ends where the context does.
void edgekv_seam_set_rolling(bool on);

namespace edgekv_server {

// A context was loaded. Where its tokens can move to other positions, what stays of a conversation is not read again.
void roll_in(llama_context * lctx);

// A completion with `n_ctx` tokens of context is about to be posted. body: the request; "edgekv_pinned" lists the messages that stay, by number.
// Throws std::invalid_argument where that is no such list.
void roll_prompt(server_task & task, int n_ctx, const json & body);

struct token_range {
    int first;
    int n;
};

// The context of a task's slot holds n_tokens and is full: what leaves it, the last range first. Empty: its answer ends here.
std::vector<token_range> roll_ranges(int task, int n_tokens, int n_ctx);

// {"n": tokens that have left the context of a task, "ranges": [[first, n], ...]}, by their positions in the whole prompt; null: none has
json left_json(int task);

// the tasks have ended
void forget_rolled(const std::unordered_set<int> & ids);

}  // namespace edgekv_server

void edgekv_prefix_moved(int seq_id, int first);

// An answer's slot may be full: the oldest exchanges leave it, and the rest closes up, with K rotated to its new positions.
template <typename Slot>
void edgekv_roll_answer(Slot & slot) {
    if (slot.prompt.n_tokens() + 1 < slot.n_ctx || slot.task->is_parent() || slot.task->is_child() || slot.prompt.tokens.has_mtmd) {
        return;
    }
    for (const auto & range : edgekv_server::roll_ranges(slot.task->id, slot.prompt.n_tokens(), slot.n_ctx)) {
        llama_tokens tokens = slot.prompt.tokens.get_tokens();
        slot.mem.seq_rm (slot.id, range.first, range.first + range.n);
        slot.mem.seq_add(slot.id, range.first + range.n, static_cast<llama_pos>(tokens.size()), -range.n);
        edgekv_prefix_moved(slot.id, range.first);
        tokens.erase(tokens.begin() + range.first, tokens.begin() + range.first + range.n);
        slot.prompt.clear();
        slot.prompt.tokens.insert(tokens);
        slot.truncated = true;
    }
}
