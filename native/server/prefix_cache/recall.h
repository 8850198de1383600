// Recall: exchanges that left a full context come back before the user's next message is read, if it is near them, and leave it first. A keeper
// is edgekv_server_settings' (edgekv_server.h). All functions but recalls() run on the decoding thread, between two llama_decode().
//
// The newest message is read twice: once behind what stayed, so that its rows tell which exchanges it is near, and again behind these. They stand
// right before it, so everything before them stays in place. A request that goes on with the same message (an agent's next step, the same question
// again) keeps the exchanges that came back for it.
#pragma once

#include "server/prefix_cache/prefixes.h"
#include "server/prefix_cache/rolling.h"
#include "server/prefix_cache/snapshots.h"

namespace edgekv_server {

// whether a keeper of exchanges is registered; any thread
bool recalls();

// Offers exchanges that a sequence still holds and that leave its task's conversation.
void recall_leave(const edgekv_prefix_slot & slot);

// A task begins in a slot that still holds the conversation before.
void recall_begins(const edgekv_prefix_slot & slot, server_task & task);

void recall(const edgekv_prefix_slot & slot, server_task & task, int n_ctx);

}  // namespace edgekv_server

template <typename Slot>
bool edgekv_recall_serves(const Slot & slot) {
    return edgekv_server::recalls() && edgekv_prefix_keeps(slot) && !slot.ctx_dft && slot.alora_invocation_start < 0 && !slot.task->is_parent() &&
        !slot.task->is_child();
}

template <typename Slot>
void edgekv_recall_leave(Slot & slot) {
    if (edgekv_recall_serves(slot)) {
        edgekv_server::recall_leave(edgekv_slot(slot));
    }
}

// Upstream holds tasks as const; nothing reads the prompt of one that begins but the slot's own loop.
template <typename Slot>
void edgekv_recall_begins(Slot & slot) {
    if (edgekv_recall_serves(slot)) {
        edgekv_server::recall_begins(edgekv_slot(slot), const_cast<server_task &>(*slot.task));
    }
}

// the tokens of a slot, at most n_past, that its task's prompt may begin with: not the newest message if exchanges come back before it
template <typename Slot>
int edgekv_recall_bound(const Slot & slot, int n_past) {
    const auto & sequence = edgekv_sequence_of(slot.id);
    return sequence.recalls == slot.task->id ? std::min(n_past, sequence.turn) : n_past;
}

template <typename Slot>
bool edgekv_recall_due(const Slot & slot) {
    const auto & sequence = edgekv_sequence_of(slot.id);
    return sequence.recalls == slot.task->id && sequence.turn == slot.prompt.n_tokens();
}

// A batch of prompt tokens ends where a snapshot is due or exchanges come back; both happen before the next batch.
template <typename Slot>
bool edgekv_prefix_pauses(const Slot & slot) { return edgekv_snapshot_due(slot) || edgekv_recall_due(slot); }

template <typename Slot>
void edgekv_prefix_between(Slot & slot) {
    if (edgekv_snapshot_due(slot)) {
        edgekv_prefix_snapshot(edgekv_slot(slot));
    }
    if (edgekv_recall_due(slot)) {
        edgekv_server::recall(edgekv_slot(slot), const_cast<server_task &>(*slot.task), slot.n_ctx);
    }
}

// If an answer's slot is full, the oldest exchanges leave it and the rest closes up, with K rotated to its new positions.
template <typename Slot>
void edgekv_roll_answer(Slot & slot) {
    if (slot.prompt.n_tokens() + 1 < slot.n_ctx || slot.task->is_parent() || slot.task->is_child() || slot.prompt.tokens.has_mtmd) {
        return;
    }
    const auto ranges = edgekv_server::roll_ranges(slot.task->id, slot.prompt.n_tokens(), slot.n_ctx);
    if (!ranges.empty()) {
        edgekv_recall_leave(slot);
    }
    for (const auto & range : ranges) {
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
