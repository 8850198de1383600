// What the server asks of whoever keeps prefixes: K and V of the tokens that a prompt begins with, computed by an earlier request. The patch
// to server-context.cpp calls what stands here; who keeps them registers with edgekv_server_set_prefixes() (edgekv_server.h). Without
// anybody a slot has what it had. All of it runs on the thread that decodes, between two llama_decode().
#pragma once

#include "edgekv_server.h"
#include "server-common.h"
#include "server/tasks.h"

#include <algorithm>
#include <vector>

// A slot as it is seen from here.
struct edgekv_prefix_slot {
    llama_context * lctx;
    int seq_id;
    int task;  // its number; -1: none
    uint64_t * n_cached;  // tokens of its prompt that need not be computed
    server_tokens * held;  // the tokens that its sequence holds, or is about to compute
    std::vector<edgekv_adapter> adapters;  // that K and V depend on
    bool keeps;  // whether others may have what it computes
    bool partly;  // an adapter works on the tokens behind its invocation only: others' rows are not like these
};

inline bool operator==(const edgekv_adapter & a, const edgekv_adapter & b) { return a.adapter == b.adapter && a.scale == b.scale; }

std::vector<edgekv_adapter> edgekv_adapters(const std::vector<common_adapter_lora_info> & lora);

// whether what a slot computes may be kept when it is done: not where its request says otherwise, nor for embeddings and rankings
template <typename Slot>
bool edgekv_prefix_keeps(const Slot & slot) {
    return !slot.task || (slot.task->params.cache_prompt && !slot.task->need_embd());
}

template <typename Slot>
edgekv_prefix_slot edgekv_slot(Slot & slot) {
    return { slot.ctx_tgt, slot.id, slot.task ? slot.task->id : -1, &slot.stats.n_prompt_cached, &slot.prompt.tokens, edgekv_adapters(slot.lora), edgekv_prefix_keeps(slot),
             slot.alora_invocation_start >= 0 };
}

// whether what was computed with some adapters serves others: only what none computed serves one that works behind its invocation
bool edgekv_prefix_serves(const std::vector<common_adapter_lora_info> & had, const std::vector<common_adapter_lora_info> & next);

// A task is about to get a slot: what this holds of another namespace is no prompt for it, whichever way it would be matched, nor is what other
// adapters computed. `usual`: those of a task that names none; where one does, upstream looks.
template <typename Slot, typename Task>
void edgekv_prefix_enter(Slot & slot, const Task & task, const std::vector<common_adapter_lora_info> & usual) {
    if (task.params.lora.empty() && !edgekv_prefix_serves(slot.lora, usual)) {
        slot.prompt.clear();
    }
    auto & held = slot.prompt.tokens;
    if (held.edgekv_space != task.tokens.edgekv_space) {
        if (!held.empty()) {
            slot.prompt_clear();
        }
        held.edgekv_space = task.tokens.edgekv_space;
    }
}

// whether anybody keeps prefixes, or sequences can share cells, so that it pays to wait for a prompt that another slot reads
bool edgekv_prefix_shares(const edgekv_prefix_slot & slot);

// how many tokens of a prompt that another slot reads are computed and worth waiting for: 0: none; `read`: they are all there now
int edgekv_prefix_common(const edgekv_prefix_slot & slot, const server_tokens & prompt, const edgekv_prefix_slot & other, const server_tokens & read);

// A prompt begins in a slot that holds the first n_past tokens of it. Takes what it can: cells of the other slots where the cache is
// unified, blocks of who keeps prefixes. Returns how many tokens it holds now, and `held` says so too. The slot's task is told what came from
// where. That and `n_cached`, which upstream sets from it, are set right where rows do not come.
int edgekv_prefix_begin(const edgekv_prefix_slot & slot, const server_tokens & prompt, int n_past,
                        const std::vector<edgekv_prefix_slot> & others);

// Rows that edgekv_prefix_begin() promised come while the next batch is computed. Around its llama_decode(); the second one says whether it
// must be called again: it failed because some rows were damaged, and the tokens from there on have been read again.
void edgekv_prefix_decode_begins();
bool edgekv_prefix_decode_ended(int & ret);

// Waits for them where no batch is computed. Everything here that looks at rows does so first. One lives while slots are updated: nothing
// is promised outside.
void edgekv_prefix_settle();
struct edgekv_prefix_scope {
    edgekv_prefix_scope();
    ~edgekv_prefix_scope() { edgekv_prefix_settle(); }

    edgekv_prefix_scope(const edgekv_prefix_scope &) = delete;
    edgekv_prefix_scope & operator=(const edgekv_prefix_scope &) = delete;
};

// The slot's tokens are computed: they can be kept. whole_blocks: more of them will come soon.
void edgekv_prefix_keep(const edgekv_prefix_slot & slot, bool whole_blocks);

// a slot whose task ends
template <typename Slot>
void edgekv_prefix_keep_all(Slot & slot) {
    if (!slot.task->is_child() && !slot.ctx_dft) {
        edgekv_prefix_keep(edgekv_slot(slot), false);
    }
}

// slots that have just read their prompt
template <typename Slots, typename State>
void edgekv_prefix_keep_read(Slots & slots, State answering) {
    for (auto & slot : slots) {
        if (slot.state == answering && slot.stats.n_gen == 1 && !slot.task->is_child() && !slot.ctx_dft) {
            edgekv_prefix_keep(edgekv_slot(slot), true);
        }
    }
}

// From token `first` on K and V in the sequence are not what its tokens give: they were moved, or loaded from somewhere.
void edgekv_prefix_moved(int seq_id, int first);
void edgekv_prefix_copied(int from_seq, int to_seq);

// false: what is kept of a prompt is being fetched, and the other slots go on meanwhile. alone: there are none, so that it may wait a moment
bool edgekv_prefix_ready(const edgekv_prefix_slot & slot, const server_tokens & prompt, bool alone);

// whether any slot waits for that, so that a batch may be empty
bool edgekv_prefix_fetches();

// Whether a slot that is about to read its prompt should wait: for another one which is reading the same beginning, of which what is there
// already is kept, so that edgekv_prefix_begin() finds it; or for what is fetched of it.
template <typename Slots, typename Slot, typename State>
bool edgekv_prefix_comes(Slots & slots, Slot & slot, State reading) {
    if (!slot.task->params.cache_prompt || slot.ctx_dft || !edgekv_prefix_shares(edgekv_slot(slot))) {
        return false;
    }
    for (auto & other : slots) {
        if (other.id == slot.id || other.state != reading || !edgekv_prefix_keeps(other)) {
            continue;
        }
        const auto theirs   = edgekv_slot(other);
        const int  n_common = edgekv_prefix_common(edgekv_slot(slot), slot.task->tokens, theirs, other.task->tokens);
        if (n_common == 0) {
            continue;
        }
        if (llama_memory_seq_pos_max(llama_get_memory(theirs.lctx), theirs.seq_id) + 1 < n_common) {
            return true;
        }
        edgekv_prefix_keep(theirs, true);
    }
    if (slot.alora_invocation_start >= 0 || slot.task->need_embd()) {
        return false;
    }
    bool alone = true;
    for (auto & other : slots) {
        alone = alone && (other.id == slot.id || !other.is_processing() || other.state == slot.state);
    }

    return !edgekv_prefix_ready(edgekv_slot(slot), slot.task->tokens, alone);
}

template <typename Slots, typename Slot>
int edgekv_prefix_take(Slots & slots, Slot & slot, int n_past) {
    if (slot.ctx_dft || slot.alora_invocation_start >= 0) {
        return n_past;
    }
    std::vector<edgekv_prefix_slot> others;
    for (auto & other : slots) {
        if (other.id != slot.id && edgekv_prefix_keeps(other)) {
            others.push_back(edgekv_slot(other));
        }
    }

    return edgekv_prefix_begin(edgekv_slot(slot), slot.task->tokens, n_past, others);
}

// a slot begins as another one is: with its cells, and its task with what the other's had
template <typename Slot>
void edgekv_prefix_copied(const Slot & from, const Slot & to) {
    edgekv_prefix_copied(from.id, to.id);
    edgekv_server::set_cached(to.task->id, edgekv_server::cached_of(from.task->id));
}

// {"slot": 0, ...} for the usage in the reply to a task
json edgekv_cached_json(int task);
