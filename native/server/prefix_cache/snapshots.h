// In a context that keeps more than rows (windows of sliding layers, recurrent states), a prompt can begin only at the sequence's present end,
// or where a snapshot was taken. The keeper of prefixes gets snapshots near a prompt's end, at the beginning of its last user message, after an
// answer, and at intervals in a long prompt. All functions run on the decoding thread, between two llama_decode().
#pragma once

#include "server/prefix_cache/prefixes.h"

namespace edgekv_server {

// A context was loaded. If its tokens can move to other positions, the rest of a conversation that rolls is not read again. If prefixes are kept with
// snapshots, llama.cpp takes no checkpoints of its own, unless there is a draft model.
void context_loaded(const llama_context * lctx, bool has_draft, int32_t & n_checkpoints);

// The number of a prompt's tokens after which its sequence can continue without a snapshot: n_past if it can forget all later tokens, else 0.
int goes_on(const edgekv_prefix_slot & slot, const server_tokens & prompt, int n_past);

// Plans snapshots for a sequence that holds the first `n` tokens of its task's prompt and reads the rest. last_user: where the last user message
// begins, -1: unknown. spacing: tokens between two snapshots in the middle of a long prompt, 0: none there.
void plan_snapshots(const edgekv_prefix_slot & slot, int n, const server_tokens & prompt, int last_user, int spacing);

// the last planned position of another slot's prompt within its first n tokens; 0: there is none
int planned_before(const edgekv_prefix_slot & slot, int n);

}  // namespace edgekv_server

template <typename Slot>
bool edgekv_snapshot_due(const Slot & slot) {
    const auto & sequence = edgekv_sequence_of(slot.id);
    return sequence.task == slot.task->id && std::binary_search(sequence.due.begin(), sequence.due.end(), slot.prompt.n_tokens());
}
