// Where a context keeps more of its tokens than rows (windows of sliding layers, recurrent states), a prompt can begin only where the sequence
// stands, or where a snapshot was taken. The keeper of prefixes gets snapshots near a prompt's end, where its last user's message begins, behind an
// answer, and now and then in a long prompt. Everything runs on the thread that decodes, between two llama_decode().
#pragma once

#include "server/prefixes.h"

namespace edgekv_server {

// A context was loaded. Where prefixes are kept with snapshots, llama.cpp takes no checkpoints of its own, unless there is a draft model.
void snapshots_in(const llama_context * lctx, bool has_draft, int32_t & n_checkpoints);

// The number of a prompt's tokens behind which its sequence can go on by itself: n_past where nothing must be forgotten that cannot be, else 0.
int goes_on(const edgekv_prefix_slot & slot, const server_tokens & prompt, int n_past);

// A sequence that holds the first `n` tokens of its task's prompt reads the rest: snapshots are taken behind some of them. last_user: where the last
// user's message begins, -1: nobody knows. spacing: tokens between two in the middle of a long prompt, 0: none.
void plan_snapshots(const edgekv_prefix_slot & slot, int n, const server_tokens & prompt, int last_user, int spacing);

// the last of the planned positions of another slot's prompt that is not behind n tokens; 0: there is none
int planned_before(const edgekv_prefix_slot & slot, int n);

// whether one is planned behind the first n tokens of a task's prompt
bool snapshot_due(int seq_id, int task, int n);
void take_snapshot(const edgekv_prefix_slot & slot);

}  // namespace edgekv_server

// A batch of prompt tokens ends where a snapshot is due, and it is taken before the next one.
template <typename Slot>
bool edgekv_snapshot_due(const Slot & slot) {
    return edgekv_server::snapshot_due(slot.id, slot.task->id, slot.prompt.n_tokens());
}

template <typename Slot>
void edgekv_snapshot_take(Slot & slot) {
    if (edgekv_snapshot_due(slot)) {
        edgekv_server::take_snapshot(edgekv_slot(slot));
    }
}
