#include "server/prefixes.h"

#include "llama-edgekv.h"
#include "server/pace.h"
#include "server/rolling.h"
#include "server/snapshots.h"

#include <cinttypes>
#include <limits>
#include <unordered_map>
#include <unordered_set>

static edgekv_prefixes g_prefixes = {};
static bool            g_kept     = false;  // somebody registered

// The number of tokens, from a sequence's beginning, whose rows are those that the tokens give; all where there is no entry.
static std::unordered_map<int, int> g_pure;

// Tokens of a sequence's prompt behind which it can go on, in contexts that keep more than rows.
static std::unordered_map<int, int> g_goes_on;

// sequences that wait for kept rows of their prompts, and whether one did so in this round of the server
static std::unordered_set<int> g_fetching;
static bool                    g_fetches = false;

// rows that a slot was promised and that have not come yet
static struct {
    bool promised = false;
    bool started  = false;
    edgekv_prefix_slot slot = {};
    edgekv_cached_tokens cached = {};
} g_load;

void edgekv_seam_set_prefixes(const edgekv_prefixes * prefixes) {
    g_kept     = prefixes != nullptr;
    g_prefixes = prefixes ? *prefixes : edgekv_prefixes{};
    g_pure.clear();
    g_goes_on.clear();
    g_fetching.clear();
    g_load = {};
}

static int edgekv_pure(int seq_id) {
    const auto it = g_pure.find(seq_id);

    return it == g_pure.end() ? std::numeric_limits<int>::max() : it->second;
}

// Computes tokens [first, end) of a slot again, because their rows could not be had.
static bool edgekv_read_again(const edgekv_prefix_slot & slot, int first, int end) {
    const auto & tokens  = slot.held->get_tokens();
    const int    n_batch = static_cast<int>(llama_n_batch(slot.lctx));
    llama_batch  batch   = llama_batch_init(std::min(n_batch, end - first), 0, 1);
    bool ok = true;
    for (int i = first; i < end && ok; i += n_batch) {
        batch.n_tokens = std::min(end - i, n_batch);
        for (int j = 0; j < batch.n_tokens; ++j) {
            batch.token[j]     = tokens[i + j];
            batch.pos[j]       = i + j;
            batch.n_seq_id[j]  = 1;
            batch.seq_id[j][0] = slot.seq_id;
            batch.logits[j]    = false;
        }
        ok = llama_decode(slot.lctx, batch) == 0;
    }
    llama_batch_free(batch);

    return ok;
}

static int edgekv_kept(const edgekv_cached_tokens & cached) {
    return cached.ram + cached.disk + cached.remote;
}

// Waits for the rows that were promised. false: some could not be had, and the tokens from there on have been read again.
static bool edgekv_come() {
    if (!g_load.promised) {
        return true;
    }
    auto load = g_load;
    g_load.promised = g_load.started = false;
    const int n_before = edgekv_kept(load.cached);
    load.cached.ram = load.cached.disk = load.cached.remote = 0;
    const int first = g_prefixes.settle(g_prefixes.user, &load.cached);
    if (first < 0) {
        return true;
    }
    auto * memory = llama_get_memory(load.slot.lctx);
    const int end = std::min(llama_memory_seq_pos_max(memory, load.slot.seq_id) + 1, static_cast<int>(load.slot.held->size()));
    if (first >= end) {
        return true;  // they have left the sequence
    }
    edgekv_server::set_cached(load.slot.task, load.cached);
    *load.slot.n_cached -= std::min<uint64_t>(*load.slot.n_cached, n_before - edgekv_kept(load.cached));
    SRV_WRN("slot %d: what is kept of its prompt is damaged, or cannot be read, from token %d on; %d tokens are read again\n",
            load.slot.seq_id, first, end - first);
    llama_memory_seq_rm(memory, load.slot.seq_id, first, -1);
    if (!edgekv_read_again(load.slot, first, end)) {
        SRV_ERR("slot %d: its prompt could not be read again\n", load.slot.seq_id);
        llama_memory_seq_rm(memory, load.slot.seq_id, first, -1);
        load.slot.held->keep_first(first);
    }

    return false;
}

void edgekv_prefix_settle() {
    edgekv_come();
}

edgekv_prefix_scope::edgekv_prefix_scope() {
    g_fetches = false;
}

bool edgekv_prefix_fetches() {
    return g_fetches;
}

void edgekv_prefix_decode_begins() {
    if (g_load.promised && !g_load.started) {
        g_load.started = g_prefixes.start(g_prefixes.user);
        if (!g_load.started) {
            edgekv_prefix_settle();
        }
        edgekv_server::decode_waits();
    }
}

bool edgekv_prefix_decode_ended(int & ret) {
    const bool loaded = g_load.started;
    if (!edgekv_come() && ret == 0) {
        ret = -3;  // it was computed with missing rows
        return false;
    }

    return loaded && ret < -1;
}

void edgekv_prefix_moved(int seq_id, int first) {
    edgekv_prefix_settle();
    g_pure[seq_id] = std::min(edgekv_pure(seq_id), first);
}

void edgekv_prefix_copied(int from_seq, int to_seq) {
    edgekv_prefix_settle();
    g_pure[to_seq] = edgekv_pure(from_seq);
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

// the first n of some tokens, as those of a slot; it must outlive them
static edgekv_prefix_tokens edgekv_tokens_of(const edgekv_prefix_slot & slot, const server_tokens & tokens, int n) {
    return { slot.lctx, slot.seq_id, tokens.get_tokens().data(), n, slot.adapters.data(), static_cast<int>(slot.adapters.size()),
             tokens.edgekv_space.c_str() };
}

// tokens of the sequence that are computed
static int edgekv_computed(const edgekv_prefix_slot & slot) {
    const int n = llama_memory_seq_pos_max(llama_get_memory(slot.lctx), slot.seq_id) + 1;

    return std::min(n, slot.held->has_mtmd ? 0 : static_cast<int>(slot.held->size()));
}

static bool edgekv_unified(const edgekv_prefix_slot & slot) {
    return llama_edgekv_what_is_kept(slot.lctx) == LLAMA_EDGEKV_KEEPS_ROWS && llama_n_ctx_seq(slot.lctx) == llama_n_ctx(slot.lctx) &&
        llama_n_seq_max(slot.lctx) > 1;
}

bool edgekv_prefixes_kept() {
    return g_kept;
}

bool edgekv_prefix_goes_on(int seq_id, int n_past) {
    const auto it = g_goes_on.find(seq_id);

    return it != g_goes_on.end() && it->second == n_past;
}

bool edgekv_prefix_shares(const edgekv_prefix_slot & slot) {
    return g_kept || edgekv_unified(slot);
}

int edgekv_prefix_common(
        const edgekv_prefix_slot & slot, const server_tokens & prompt, const edgekv_prefix_slot & other, const server_tokens & read) {
    if (prompt.has_mtmd || read.has_mtmd || slot.held->has_mtmd || !edgekv_alike(other, slot)) {
        return 0;
    }
    const int n_have = static_cast<int>(slot.held->get_common_prefix(prompt));
    int n_common = static_cast<int>(read.get_common_prefix(prompt));
    if (edgekv_server::keeps_snapshots(slot.lctx)) {
        n_common = edgekv_server::planned_before(other, std::min(n_common, static_cast<int>(prompt.size()) - 1));
    }

    // the slot computes the last token of its prompt itself
    return n_common - n_have < EDGEKV_PREFIX_BLOCK ? 0 : std::min(n_common, static_cast<int>(prompt.size()) - 1);
}

// cells of the sequence that begins most like the prompt
static int edgekv_share(const edgekv_prefix_slot & slot, const server_tokens & prompt, int n_past, const std::vector<edgekv_prefix_slot> & others) {
    int n_best = n_past;
    const edgekv_prefix_slot * best = nullptr;
    for (const auto & other : others) {
        if (other.held->has_mtmd || !edgekv_alike(other, slot)) {
            continue;
        }
        const int n = std::min({ static_cast<int>(other.held->get_common_prefix(prompt)), edgekv_computed(other), edgekv_pure(other.seq_id) });
        if (n > n_best) {
            n_best = n;
            best   = &other;
        }
    }
    if (best) {
        llama_memory_seq_rm(llama_get_memory(slot.lctx), slot.seq_id, n_past, -1);
        llama_memory_seq_cp(llama_get_memory(slot.lctx), best->seq_id, slot.seq_id, n_past, n_best);
    }

    return n_best;
}

// -1: rows are all that the context keeps
static int edgekv_goes_on(const edgekv_prefix_slot & slot, const server_tokens & prompt, int n_have) {
    return edgekv_server::keeps_snapshots(slot.lctx) ? edgekv_server::goes_on(slot, prompt, n_have) : -1;
}

bool edgekv_prefix_ready(const edgekv_prefix_slot & slot, const server_tokens & prompt, bool alone) {
    if (!g_kept || prompt.has_mtmd || slot.held->has_mtmd) {
        return true;
    }
    const auto all    = edgekv_tokens_of(slot, prompt, static_cast<int>(prompt.get_tokens().size()));
    const int  n_have = static_cast<int>(slot.held->get_common_prefix(prompt));
    if (g_prefixes.ready(g_prefixes.user, &all, n_have, edgekv_goes_on(slot, prompt, n_have), alone)) {
        return true;
    }
    g_fetching.insert(slot.seq_id);
    g_fetches = true;

    return false;
}

int edgekv_prefix_begin(
        const edgekv_prefix_slot & slot, const server_tokens & prompt, int n_past, const std::vector<edgekv_prefix_slot> & others, int last_user) {
    edgekv_prefix_settle();
    g_fetching.erase(slot.seq_id);
    g_goes_on.erase(slot.seq_id);
    edgekv_cached_tokens cached = {};
    cached.slot = n_past;
    edgekv_server::set_cached(slot.task, cached);
    if (n_past <= edgekv_pure(slot.seq_id)) {
        g_pure.erase(slot.seq_id);  // what comes behind is computed
    }
    if (prompt.has_mtmd || slot.held->has_mtmd) {
        return n_past;
    }

    int n = n_past;
    if (edgekv_unified(slot)) {
        n = edgekv_share(slot, prompt, n, others);
        cached.shared = n - n_past;
    }
    if (g_kept) {
        const auto all     = edgekv_tokens_of(slot, prompt, static_cast<int>(prompt.get_tokens().size()));
        const int  goes_on = edgekv_goes_on(slot, prompt, n);
        cached.slot = goes_on < 0 ? cached.slot : goes_on;
        g_prefixes.begin(g_prefixes.user, &all, n, goes_on, &cached);
        n = cached.slot + cached.shared + edgekv_kept(cached);
        if (goes_on >= 0) {
            if (n == goes_on) {  // nothing was put in
                llama_memory_seq_rm(llama_get_memory(slot.lctx), slot.seq_id, n, -1);
            }
            g_goes_on[slot.seq_id] = n;
            edgekv_server::plan_snapshots(slot, n, static_cast<int>(prompt.size()), last_user, cached.spacing);
        }
        if (cached.comes) {
            g_load = { true, false, slot, cached };
        }
        if (const auto & nearly = cached.nearly; nearly.n_lost > 0) {
            SRV_WRN("a kept conversation goes on differently at token %d; %d tokens behind it are read again\n",
                    nearly.position, nearly.n_lost);
            SRV_DBG("at token %d there is '%s' in it, and '%s' now\n",
                    nearly.position, common_token_to_piece(slot.lctx, nearly.stored).c_str(),
                    common_token_to_piece(slot.lctx, nearly.asked).c_str());
        }
    }
    edgekv_server::set_cached(slot.task, cached);
    if (n < n_past) {
        slot.held->keep_first(n);
    } else if (n > n_past) {
        slot.held->keep_first(n_past);
        for (int i = n_past; i < n; ++i) {
            slot.held->push_back(prompt[i]);
        }
        SRV_INF("slot %d has %d tokens of its prompt of %d: %d of its own, %d of other slots, %d from RAM, %d from disk, %d from a server\n",
                slot.seq_id, n, static_cast<int>(prompt.size()), cached.slot, cached.shared, cached.ram, cached.disk, cached.remote);
    }

    return n;
}

static bool edgekv_may_keep(const edgekv_prefix_slot & slot) {
    return g_kept && slot.keeps && !slot.held->has_mtmd && !slot.partly;
}

void edgekv_prefix_keep(const edgekv_prefix_slot & slot, bool more_come) {
    if (g_fetching.erase(slot.seq_id) > 0) {
        g_prefixes.leave(g_prefixes.user, slot.seq_id);  // its request ended before its prompt began
    }
    if (!edgekv_may_keep(slot)) {
        return;
    }
    edgekv_prefix_settle();
    const int  computed  = edgekv_computed(slot);
    const bool snapshots = edgekv_server::keeps_snapshots(slot.lctx);
    int n = std::min(computed, edgekv_pure(slot.seq_id));
    if (more_come && !snapshots) {
        n = n/EDGEKV_PREFIX_BLOCK*EDGEKV_PREFIX_BLOCK;
    }
    if (n > 0) {
        const auto all = edgekv_tokens_of(slot, *slot.held, n);
        g_prefixes.keep(g_prefixes.user, &all);
    }
    if (computed > 0 && snapshots && !more_come) {
        edgekv_prefix_snapshot(slot, computed);
    }
}

void edgekv_prefix_snapshot(const edgekv_prefix_slot & slot, int n) {
    if (edgekv_may_keep(slot) && n <= edgekv_pure(slot.seq_id)) {
        const auto all = edgekv_tokens_of(slot, *slot.held, n);
        g_prefixes.snapshot(g_prefixes.user, &all);
    }
}

json edgekv_usage_json(int task) {
    const auto cached = edgekv_server::cached_of(task);
    json usage;
    usage["cached_tokens"] = {
        {"slot", cached.slot}, {"shared", cached.shared}, {"ram", cached.ram}, {"disk", cached.disk}, {"remote", cached.remote} };
    if (const json left = edgekv_server::left_json(task); !left.is_null()) {
        usage["left"] = left;
    }

    return usage;
}
