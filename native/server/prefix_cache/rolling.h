// Whole oldest exchanges leave a full context; an exchange is a user's message and everything that answers it. The system prompt, pinned
// exchanges and the newest one stay. Prompts roll on their request's thread, before they are posted; answers roll on the decoding thread. The
// whole conversation's length decides what leaves, in steps of a quarter of the context, so that several turns have the same beginning. With a
// keeper of exchanges (recall.h) another quarter is left for exchanges that come back before the newest; they leave first.
#pragma once

#include "edgekv_server.h"
#include "server-task.h"

#include <memory>
#include <vector>

namespace edgekv_server {

struct exchange {
    int  first;  // where the user's message begins in the whole prompt
    bool stays = false;
    bool gone  = false;  // it left the context
    bool back  = false;  // it left, and came back
};

// the conversation of a task
struct rolled_conversation {
    std::vector<exchange> exchanges;  // none: nothing rolls
    int n_back = 0;  // tokens in the slot that came back, before the newest exchange
    int n_messages = 0;  // of the request
    std::shared_ptr<const llama_tokens> whole;  // the whole prompt, if exchanges of it may come back
};

// The spans of a prompt's messages: upstream's, or only those between user messages if upstream did not find each of these (it takes a
// template's default system prompt for part of a user message). body: the request. Threads of requests call it.
common_chat_msg_spans message_spans(const common_chat_msg_spans & found, const server_tokens & tokens, const json & body,
                                    const server_chat_params & chat, const llama_vocab * vocab);

// A completion with `n_ctx` tokens of context is about to be posted. body: the request; "edgekv_pinned" lists the numbers of messages that stay.
// Throws std::invalid_argument if it is not such a list.
void roll_prompt(server_task & task, int n_ctx, const json & body);

int total(const std::vector<edgekv_run> & ranges);

// The context of a task's slot holds n_tokens and is full. Returns the ranges that leave it, the last one first; empty: the answer ends here.
std::vector<edgekv_run> roll_ranges(int task, int n_tokens, int n_ctx);

// what a task's conversation has outside of its context
struct gone_exchanges {
    std::shared_ptr<const llama_tokens> whole;  // null: none left
    std::vector<edgekv_run> gone;  // each exchange, by positions in the whole prompt, in order
    int whole_turn = 0;  // where the newest exchange begins in the whole prompt
    int turn = 0;        // where it begins in the task's prompt
    int n_messages = 0;  // of the request
};
gone_exchanges gone_of(int task);

// Exchanges of a task, by positions in the whole prompt, have come back before its newest exchange.
void came_back(int task, const std::vector<edgekv_run> & ranges);

// Tokens of a prompt whose exchanges left that a slot holds further back, behind the beginning that both have: they move in place.
int moves_in(const server_task & task, const server_tokens & held);

// A prompt whose exchanges left takes the idle slot with most of its tokens, also of those that move in place: the common beginning is the system prompt.
// best, similarity: by common beginnings.
template <typename Slots, typename Slot>
void choose_rolled(Slots & slots, const server_task & task, Slot *& best, float & similarity) {
    for (Slot & slot : slots) {
        const int n = slot.is_processing() || (task.id_slot >= 0 && slot.id != task.id_slot) ? 0 : moves_in(task, slot.prompt.tokens);
        if (const float all = float(slot.prompt.tokens.get_common_prefix(task.tokens) + n)/task.tokens.size(); n > 0 && all > similarity) {
            best       = &slot;
            similarity = all;
        }
    }
}

// the most tokens that come back into a prompt of n_tokens
int most_back(const server_task & task, int n_tokens, int n_ctx);

// Adds "left", {"n": tokens that left the context, "ranges": [[first, n], ...]} by positions in the whole prompt, if any did; and "back", the same of
// those that came back, with "before", where the message begins before which they stand.
void add_rolled(json & usage, const rolled_conversation & c);

}  // namespace edgekv_server
