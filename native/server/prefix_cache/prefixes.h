// Kept prefixes, the server's side: K and V of a prompt's first tokens, computed by an earlier request. The patches call these
// functions. The keeper is edgekv_server_settings' (edgekv_server.h); without one a slot has only its own tokens.
// All functions run on the decoding thread, between two llama_decode().
#pragma once

#include "edgekv_server.h"
#include "llama-edgekv.h"
#include "server-common.h"
#include "server/prefix_cache/media.h"
#include "server/prefix_cache/misses.h"
#include "server/prefix_cache/tasks.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

// A slot as these functions need it.
struct edgekv_prefix_slot {
    llama_context * lctx;
    mtmd_context * mctx;  // null: prompts are only text
    int seq_id;
    int task;  // number of its task; -1: none
    uint64_t * n_cached;  // tokens of its prompt that need not be computed
    server_tokens * held;  // the tokens that its sequence holds, or is about to compute
    std::vector<edgekv_adapter> adapters;  // the adapters that K and V depend on
    bool keeps;  // whether other requests may use the rows that it computes
    bool partly;  // an adapter works only on tokens after its invocation, so the rows differ from other slots'
};

// exchanges that came back for a message
struct edgekv_recalled {
    edgekv_server::gone_exchanges of;  // of the message's prompt; whole null: none came
    std::vector<edgekv_run> ranges;  // positions in the whole prompt
    std::string space;
    std::vector<edgekv_adapter> adapters;
};

// What is known of a sequence besides its tokens.
struct edgekv_sequence {
    int task = -1;  // whose prompt it holds
    edgekv_server::prompt_marks marks;  // of the task; they outlive its request
    std::vector<int> due;  // numbers of the prompt's tokens after which a snapshot is due
    int pure = std::numeric_limits<int>::max();  // the number of first tokens whose rows are as the tokens alone give them
    int goes_on = -1;  // of a context that keeps more than rows: the number of the prompt's tokens after which the sequence can continue
    bool waits = false;  // for kept rows of a prompt
    int recalls = -1;  // the task before whose newest message, at token `turn`, exchanges come back
    int turn = 0;
    edgekv_recalled recalled;
    edgekv_server_request begun = {};  // its newest prompt; n_prompt 0: none
};

// rows of a slot's prompt that have not come yet
struct edgekv_promised_rows {
    bool promised = false;
    bool started  = false;
    edgekv_prefix_slot slot = {};
    const server_tokens * prompt = nullptr;
    edgekv_cached_tokens cached = {};
    edgekv_server_request found = {};  // told once they have come; n_prompt 0: nothing is to be told
};

edgekv_sequence & edgekv_sequence_of(int seq_id);

inline bool operator==(const edgekv_adapter & a, const edgekv_adapter & b) { return a.adapter == b.adapter && a.scale == b.scale; }

std::vector<edgekv_adapter> edgekv_adapters(const std::vector<common_adapter_lora_info> & lora);

// Whether a slot's rows may be kept: yes, unless its request forbids it or asks for embeddings or a ranking.
template <typename Slot>
bool edgekv_prefix_keeps(const Slot & slot) {
    return !slot.task || (slot.task->params.cache_prompt && !slot.task->need_embd());
}

template <typename Slot>
edgekv_prefix_slot edgekv_slot(Slot & slot) {
    return { slot.ctx_tgt, slot.mctx, slot.id, slot.task ? slot.task->id : -1, &slot.stats.n_prompt_cached, &slot.prompt.tokens,
             edgekv_adapters(slot.lora), edgekv_prefix_keeps(slot), slot.alora_invocation_start >= 0 };
}

// Whether rows computed with the adapters `had` serve a task with `next`: if they are equal, or if there were none and `next` works only after
// its invocation.
bool edgekv_prefix_serves(const std::vector<common_adapter_lora_info> & had, const std::vector<common_adapter_lora_info> & next);

// A task is about to get a slot. The slot forgets tokens of another namespace, so that no match finds them, and rows computed with other
// adapters. `usual`: the adapters of a task that names none; if a task names some, upstream compares them.
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

// Whether waiting for another slot's prompt pays: a keeper is registered, or sequences share cells.
bool edgekv_prefix_shares(const edgekv_prefix_slot & slot);

// Kept rows in RAM go, n_bytes of them or more. Whether any went.
bool edgekv_prefix_evict(int64_t n_bytes);

// The number of another slot's tokens worth waiting for; 0: none. `read`: the other slot's prompt.
int edgekv_prefix_common(const edgekv_prefix_slot & slot, const server_tokens & prompt, const edgekv_prefix_slot & other, const server_tokens & read);

// A prompt begins in a slot that holds its first n_past tokens. The slot takes cells of other slots if the cache is unified, then blocks
// of the keeper. Returns the number of tokens that it holds now, as `held` does, and notes the tokens' sources for its task. If rows do not
// come, the note and `n_cached`, which upstream sets from the number, are corrected. In a context that keeps more than rows the number may be
// below n_past: the sequence continues there. last_user: where the prompt's last user message begins, -1: unknown.
int edgekv_prefix_begin(const edgekv_prefix_slot & slot, const server_tokens & prompt, int n_past,
                        const std::vector<edgekv_prefix_slot> & others, int last_user);

// A slot's prompt begins behind its first n_past tokens, after everything that changes the number: tells what was found, and why not more. May cache:
// the request takes tokens from slots and the keeper.
void edgekv_prefix_begun(const edgekv_prefix_slot & slot, int n_prompt, int n_past, bool may_cache);
template <typename Slot>
void edgekv_prefix_begun(Slot & slot, int n_past) {
    const bool may_cache = edgekv_prefix_keeps(slot) && !slot.ctx_dft && slot.alora_invocation_start < 0;
    edgekv_prefix_begun(edgekv_slot(slot), static_cast<int>(slot.task->n_tokens()), n_past, may_cache);
}

// Rows promised by edgekv_prefix_begin() come while the next batch is computed; these functions stand around its llama_decode(). The second
// says whether to decode again: some rows were damaged, so the decode failed, and the tokens from there on have been read again.
void edgekv_prefix_decode_begins();
bool edgekv_prefix_decode_ended(int & ret);

// Waits for promised rows while no batch is computed; every function here that reads rows calls it first. false: some are lost, and the tokens from
// there on have been read again. A scope lives while slots are updated; outside of it no rows are promised.
bool edgekv_prefix_settle();
struct edgekv_prefix_scope {
    ~edgekv_prefix_scope() { edgekv_prefix_settle(); }
};

// The batch's `n` tokens from `first` on are about to be decoded. Tells the planes which sequences read a prompt: if prompts are read exactly, they read
// these tokens exactly, however few a ubatch holds.
template <typename Tokens>
void edgekv_tell_prompts(llama_context * lctx, const Tokens & tokens, int first, int n) {
    std::vector<int32_t> seq_ids;
    for (int i = first; i < first + n; ++i) {
        if (tokens[i].is_prompt && (seq_ids.empty() || seq_ids.back() != tokens[i].id_slot)) {
            seq_ids.push_back(tokens[i].id_slot);
        }
    }
    llama_edgekv_set_prompts(lctx, seq_ids.data(), static_cast<int>(seq_ids.size()));
}

// A medium of a slot's prompt is about to be computed, beside the batch.
template <typename Slot>
void edgekv_prefix_medium_begins(const Slot & slot) {
    edgekv_prefix_settle();
    const int32_t seq_id = slot.id;
    llama_edgekv_set_prompts(slot.ctx_tgt, &seq_id, 1);
}

// The first n of some tokens, as a slot's, in the form that keepers get: numbers, media and, if a medium's positions do not count up, positions. Slot and
// tokens must outlive it.
class edgekv_told_tokens {
public:
    edgekv_told_tokens(const edgekv_prefix_slot & slot, const server_tokens & tokens, int n);
    edgekv_told_tokens(const edgekv_told_tokens &) = delete;
    edgekv_told_tokens & operator=(const edgekv_told_tokens &) = delete;

    edgekv_prefix_tokens told = {};

private:
    std::vector<int32_t> numbers;
    std::vector<edgekv_medium> media;
    std::vector<int32_t> at;
};

// the number of a slot's computed tokens
int edgekv_prefix_computed(const edgekv_prefix_slot & slot);

// Keeps a slot's computed tokens. more_come: only whole blocks, unless a snapshot may need the rest.
void edgekv_prefix_keep(const edgekv_prefix_slot & slot, bool more_come);

// Keeps a snapshot of the sequence, if all tokens that it holds are computed.
void edgekv_prefix_snapshot(const edgekv_prefix_slot & slot);

// whether a keeper is registered
bool edgekv_prefixes_kept();

// Whether a sequence can continue after n_past tokens although upstream misses earlier ones: edgekv_prefix_begin() found so, or put in a snapshot.
template <typename Slot>
bool edgekv_prefix_goes_on(const Slot & slot, int n_past) {
    return !slot.ctx_dft && slot.alora_invocation_start < 0 && edgekv_sequence_of(slot.id).goes_on == n_past;
}

// A slot's task ends: tells it, and keeps the slot's tokens. Those that must not be kept are nobody's beginning.
template <typename Slot>
void edgekv_prefix_keep_all(Slot & slot) {
    edgekv_server::tell_ended(slot);
    if (!slot.task->is_child() && !slot.ctx_dft) {
        edgekv_prefix_keep(edgekv_slot(slot), false);
    }
    if (!edgekv_prefix_keeps(slot)) {
        slot.prompt_clear();
    }
}

// keeps the tokens of slots that have just read their prompt
template <typename Slots, typename State>
void edgekv_prefix_keep_read(Slots & slots, State answering) {
    for (auto & slot : slots) {
        if (slot.state == answering && slot.stats.n_gen == 1 && !slot.task->is_child() && !slot.ctx_dft) {
            edgekv_prefix_keep(edgekv_slot(slot), true);
        }
    }
}

// From token `first` on, a sequence's rows are not as its tokens alone give them: they were moved or loaded.
void edgekv_prefix_moved(int seq_id, int first);

// false: kept rows of a prompt are being fetched; the other slots go on meanwhile. alone: no other slot works, so the call may wait a moment.
bool edgekv_prefix_ready(const edgekv_prefix_slot & slot, const server_tokens & prompt, bool alone);

// Whether a slot waits for rows being fetched. A batch may then be empty.
bool edgekv_prefix_fetches();

// Whether a slot should wait before it reads its prompt: another slot, in one of the states `reading`, reads the same beginning, or kept rows
// are being fetched. Once the other slot has computed the common tokens, they are kept, and edgekv_prefix_begin() finds them.
template <typename Slots, typename Slot, typename State>
bool edgekv_prefix_comes(Slots & slots, Slot & slot, std::initializer_list<State> reading) {
    if (!slot.task->params.cache_prompt || slot.ctx_dft || !edgekv_prefix_shares(edgekv_slot(slot))) {
        return false;
    }
    for (auto & other : slots) {
        const bool reads = std::find(reading.begin(), reading.end(), other.state) != reading.end();
        if (other.id == slot.id || !reads || !edgekv_prefix_keeps(other)) {
            continue;
        }
        const auto theirs   = edgekv_slot(other);
        const int  n_common = edgekv_prefix_common(edgekv_slot(slot), slot.task->tokens, theirs, other.task->tokens);
        if (n_common == 0) {
            continue;
        }
        if (edgekv_prefix_computed(theirs) < n_common) {
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

    return edgekv_prefix_begin(edgekv_slot(slot), slot.task->tokens, n_past, others, slot.task->params.message_spans.last_user_message_pos());
}

// A slot takes over another slot's cells, and its task the same cached tokens.
template <typename Slot>
void edgekv_prefix_copied(const Slot & from, const Slot & to) {
    edgekv_prefix_settle();
    const int pure = edgekv_sequence_of(from.id).pure;
    edgekv_sequence_of(to.id).pure = pure;
    const auto known = edgekv_server::known_of(from.task->id);
    edgekv_server::set_cached(to.task->id, known.cached);
    edgekv_server::set_found(to.task->id, known.found);
}

// {"cached_tokens": {"slot": 0, ...}, "left": ...} for the usage in a task's reply
json edgekv_usage_json(int task);
