#include "server/prefix_cache/prefixes.h"

#include "llama-edgekv.h"
#include "llama-edgekv-places.h"
#include "server/prefix_cache/cache.h"
#include "server/prefix_cache/media.h"
#include "server/prefix_cache/snapshots.h"
#include "server/scheduling/limits.h"
#include "server/scheduling/pace.h"

#include <limits>

using edgekv_server::the_cache;

static const edgekv_prefixes & edgekv_keeper() { return *edgekv_server::current().prefixes; }

edgekv_sequence & edgekv_sequence_of(int seq_id) { return the_cache().context.sequences[seq_id]; }

static int edgekv_kept(const edgekv_cached_tokens & cached) {
    return cached.ram + cached.disk + cached.remote;
}

bool edgekv_prefix_settle() {
    auto & promised = the_cache().context.promised;
    if (!promised.promised) {
        return true;
    }
    auto load = promised;
    promised = {};
    load.cached.ram = load.cached.disk = load.cached.remote = 0;
    const int first = edgekv_keeper().release(load.slot.seq_id, &load.cached);
    if (first >= 0) {
        load.cached.missed    = EDGEKV_MISS_DAMAGED;
        load.cached.missed_at = first;
        load.found = edgekv_server::prefix_found(load.slot.seq_id, load.slot.task, load.found.n_prompt, std::min(load.found.n_found, first), load.cached);
    }
    if (load.found.n_prompt > 0) {
        edgekv_server::tell_found(load.found);
    }
    if (first < 0) {
        return true;
    }
    auto * memory = llama_get_memory(load.slot.lctx);
    const int end = edgekv_prefix_computed(load.slot);
    if (first >= end) {
        return true;  // the tokens have left the sequence
    }
    edgekv_server::set_cached(load.slot.task, load.cached);
    *load.slot.n_cached = std::min<uint64_t>(*load.slot.n_cached, first);
    SRV_WRN("slot %d: the kept rows of its prompt are damaged or cannot be read from token %d on; %d tokens are read again\n",
            load.slot.seq_id, first, end - first);
    const auto at = load.slot.held->pos_next(first);
    llama_memory_seq_rm(memory, load.slot.seq_id, at, -1);
    if (!edgekv_server::compute_tokens(load.slot.lctx, load.slot.mctx, load.slot.seq_id, *load.slot.held, *load.prompt, first, end)) {
        SRV_ERR("slot %d: its prompt could not be read again\n", load.slot.seq_id);
        llama_memory_seq_rm(memory, load.slot.seq_id, at, -1);
        load.slot.held->keep_first(first);
    }

    return false;
}

bool edgekv_prefix_fetches() {
    const auto & sequences = the_cache().context.sequences;
    return std::any_of(sequences.begin(), sequences.end(), [](const auto & one) { return one.second.waits; });
}

void edgekv_prefix_decode_begins() {
    auto & load = the_cache().context.promised;
    if (load.promised && !load.started) {
        load.started = edgekv_keeper().start();
        if (!load.started) {
            edgekv_prefix_settle();
        }
        edgekv_server::decode_waits();
    }
}

bool edgekv_prefix_decode_ended(int & ret) {
    const bool loaded = the_cache().context.promised.started;
    if (!edgekv_prefix_settle() && ret == 0) {
        ret = -3;  // the batch was computed with missing rows
        return false;
    }

    return loaded && ret < -1;
}

void edgekv_prefix_moved(int seq_id, int first) {
    edgekv_prefix_settle();
    auto & pure = edgekv_sequence_of(seq_id).pure;
    pure = std::min(pure, first);
}

std::vector<edgekv_adapter> edgekv_adapters(const std::vector<common_adapter_lora_info> & lora) {
    std::vector<edgekv_adapter> adapters;
    for (const auto & adapter : lora) {
        if (adapter.scale != 0.0f) {
            adapters.push_back({ reinterpret_cast<uintptr_t>(adapter.ptr), adapter.scale });
        }
    }

    return adapters;
}

bool edgekv_prefix_serves(const std::vector<common_adapter_lora_info> & had, const std::vector<common_adapter_lora_info> & next) {
    const auto before = edgekv_adapters(had);

    return before == edgekv_adapters(next) || (before.empty() && lora_all_alora(next));
}

static bool edgekv_alike(const edgekv_prefix_slot & a, const edgekv_prefix_slot & b) {
    return a.adapters == b.adapters && !a.partly && !b.partly;
}

int edgekv_prefix_computed(const edgekv_prefix_slot & slot) {
    const auto newest = llama_memory_seq_pos_max(llama_get_memory(slot.lctx), slot.seq_id);
    return newest < 0 ? 0 : static_cast<int>(std::min(slot.held->size_up_to_pos(newest + 1), slot.held->size()));
}

static bool edgekv_unified(const edgekv_prefix_slot & slot) {
    return llama_edgekv_what_is_kept(slot.lctx) == LLAMA_EDGEKV_KEEPS_ROWS && llama_n_ctx_seq(slot.lctx) == llama_n_ctx(slot.lctx) &&
        llama_n_seq_max(slot.lctx) > 1;
}

bool edgekv_prefixes_kept() {
    return edgekv_server::current().prefixes != nullptr;
}

bool edgekv_prefix_shares(const edgekv_prefix_slot & slot) {
    return edgekv_prefixes_kept() || edgekv_unified(slot);
}

int edgekv_prefix_common(
        const edgekv_prefix_slot & slot, const server_tokens & prompt, const edgekv_prefix_slot & other, const server_tokens & read) {
    if (!edgekv_alike(other, slot)) {
        return 0;
    }
    const int n_have = static_cast<int>(slot.held->get_common_prefix(prompt));
    int n_common = static_cast<int>(read.get_common_prefix(prompt));
    if (llama_edgekv_keeps_snapshots(slot.lctx)) {
        n_common = edgekv_server::planned_before(other, std::min(n_common, static_cast<int>(prompt.size()) - 1));
    }

    // the slot computes the last token of its prompt itself
    return n_common - n_have < EDGEKV_PREFIX_BLOCK ? 0 : std::min(n_common, static_cast<int>(prompt.size()) - 1);
}

// Sequences share whole groups of cells: the next tokens then lie in a group as they would without others, and mode sparse reads the same rows. All of
// a prompt but its last token is shared to the last cell. None ends within a medium, whose tokens may have one position and are computed together.
static int edgekv_shareable(int n_common, const server_tokens & prompt) {
    if (n_common + 1 >= static_cast<int>(prompt.size())) {
        return n_common;
    }
    int n = n_common - n_common % llama_edgekv_group;
    for (int whole; (whole = edgekv_server::whole_media(prompt, n)) != n;) {
        n = whole - whole % llama_edgekv_group;
    }
    return n;
}

// takes cells of the sequence with the longest common beginning
static int edgekv_share(const edgekv_prefix_slot & slot, const server_tokens & prompt, int n_past, const std::vector<edgekv_prefix_slot> & others) {
    int n_best = n_past;
    const edgekv_prefix_slot * best = nullptr;
    for (const auto & other : others) {
        if (!edgekv_alike(other, slot)) {
            continue;
        }
        const int n = edgekv_shareable(std::min({ static_cast<int>(other.held->get_common_prefix(prompt)), edgekv_prefix_computed(other),
            edgekv_sequence_of(other.seq_id).pure }), prompt);
        if (n > n_best) {
            n_best = n;
            best   = &other;
        }
    }
    if (best) {
        const auto from = prompt.pos_next(n_past - n_past % llama_edgekv_group);
        llama_memory_seq_rm(llama_get_memory(slot.lctx), slot.seq_id, from, -1);
        llama_memory_seq_cp(llama_get_memory(slot.lctx), best->seq_id, slot.seq_id, from, prompt.pos_next(n_best));
    }

    return n_best;
}

// -1: the context keeps only rows
static int edgekv_goes_on(const edgekv_prefix_slot & slot, const server_tokens & prompt, int n_have) {
    return llama_edgekv_keeps_snapshots(slot.lctx) ? edgekv_server::goes_on(slot, prompt, n_have) : -1;
}

bool edgekv_prefix_ready(const edgekv_prefix_slot & slot, const server_tokens & prompt, bool alone) {
    if (!edgekv_prefixes_kept()) {
        return true;
    }
    const int n_have = static_cast<int>(slot.held->get_common_prefix(prompt));
    const edgekv_told_tokens all(slot, prompt, static_cast<int>(prompt.size()));
    const bool ready = edgekv_keeper().match(&all.told, n_have, edgekv_goes_on(slot, prompt, n_have), alone);
    edgekv_sequence_of(slot.seq_id).waits |= !ready;

    return ready;
}

int edgekv_prefix_begin(
        const edgekv_prefix_slot & slot, const server_tokens & prompt, int n_past, const std::vector<edgekv_prefix_slot> & others, int last_user) {
    edgekv_prefix_settle();
    auto & sequence = edgekv_sequence_of(slot.seq_id);
    sequence.task    = slot.task;
    sequence.marks   = edgekv_server::known_of(slot.task).marks;
    sequence.goes_on = -1;
    sequence.waits   = false;
    sequence.due.clear();
    edgekv_cached_tokens cached = {};
    cached.slot = n_past;
    edgekv_server::set_cached(slot.task, cached);
    if (n_past <= sequence.pure) {
        sequence.pure = std::numeric_limits<int>::max();  // later tokens are computed
    }

    int n = n_past;
    if (edgekv_unified(slot)) {
        n = edgekv_share(slot, prompt, n, others);
        cached.shared = n - n_past;
    }
    if (edgekv_prefixes_kept()) {
        const edgekv_told_tokens all(slot, prompt, static_cast<int>(prompt.size()));
        const int  goes_on = edgekv_goes_on(slot, prompt, n);
        cached.slot = goes_on < 0 ? cached.slot : goes_on;
        edgekv_keeper().load(&all.told, n, goes_on, &cached);
        n = cached.slot + cached.shared + edgekv_kept(cached);
        if (goes_on >= 0) {
            if (n == goes_on) {  // no snapshot was put in
                llama_memory_seq_rm(llama_get_memory(slot.lctx), slot.seq_id, prompt.pos_next(n), -1);
            }
            sequence.goes_on = n;
            edgekv_server::plan_snapshots(slot, n, prompt, last_user, cached.spacing);
        }
        if (cached.comes) {
            the_cache().context.promised = { true, false, slot, &prompt, cached, {} };
        }
    }
    edgekv_server::set_cached(slot.task, cached);
    if (n < n_past) {
        slot.held->keep_first(n);
    } else if (n > n_past) {
        slot.held->keep_first(n_past);
        edgekv_server::append_tokens(*slot.held, prompt, n_past, n);
    }

    return n;
}

void edgekv_prefix_begun(const edgekv_prefix_slot & slot, int n_prompt, int n_past, bool may_cache) {
    auto cached = edgekv_server::known_of(slot.task).cached;
    if (!edgekv_prefixes_kept() || !may_cache) {
        cached.missed = EDGEKV_MISS_DISABLED;
    } else if (const int n = cached.slot + cached.shared + edgekv_kept(cached); n_past < n && n_past < n_prompt - 1) {
        cached.missed    = EDGEKV_MISS_NO_CHECKPOINT;  // upstream goes back
        cached.missed_at = n_past;
    }
    const auto found = edgekv_server::prefix_found(slot.seq_id, slot.task, n_prompt, n_past, cached);
    if (auto & load = the_cache().context.promised; load.promised && load.slot.seq_id == slot.seq_id) {
        load.found = found;
    } else {
        edgekv_server::tell_found(found);
    }
}

bool edgekv_prefix_evict(int64_t n_bytes) {
    return edgekv_prefixes_kept() && edgekv_keeper().evict(static_cast<size_t>(n_bytes)) != 0;
}

static bool edgekv_may_keep(const edgekv_prefix_slot & slot) {
    return edgekv_prefixes_kept() && slot.keeps && !slot.partly;
}

// Keeps the first n tokens of a slot. rows, snapshot: as for the keeper.
static void edgekv_insert(const edgekv_prefix_slot & slot, int n, bool rows, bool snapshot) {
    if (n > 0) {
        const edgekv_told_tokens all(slot, *slot.held, n);
        edgekv_keeper().insert(&all.told, rows, snapshot);
    }
}

void edgekv_prefix_keep(const edgekv_prefix_slot & slot, bool more_come) {
    auto & sequence = edgekv_sequence_of(slot.seq_id);
    if (sequence.waits) {  // the request ended before its prompt began
        sequence.waits = false;
        edgekv_cached_tokens none = {};
        edgekv_keeper().release(slot.seq_id, &none);
    }
    if (!edgekv_may_keep(slot)) {
        return;
    }
    edgekv_prefix_settle();
    const int  computed  = edgekv_prefix_computed(slot);
    const int  n         = std::min(computed, sequence.pure);
    const bool snapshots = llama_edgekv_keeps_snapshots(slot.lctx);
    edgekv_insert(slot, more_come && !snapshots ? n/EDGEKV_PREFIX_BLOCK*EDGEKV_PREFIX_BLOCK : n, true, snapshots && !more_come && n == computed);
}

void edgekv_prefix_snapshot(const edgekv_prefix_slot & slot) {
    const int  n   = static_cast<int>(slot.held->size());
    const bool all = llama_memory_seq_pos_max(llama_get_memory(slot.lctx), slot.seq_id) + 1 == slot.held->pos_next();
    if (all && edgekv_may_keep(slot) && n <= edgekv_sequence_of(slot.seq_id).pure) {
        edgekv_insert(slot, n, false, true);
    }
}
