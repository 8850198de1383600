#include "server/prefix_cache/misses.h"

#include "server/prefix_cache/cache.h"
#include "server/scheduling/limits.h"

#include <algorithm>

namespace edgekv_server {
namespace {

// more tokens than these are worth a line where people see it
constexpr int MANY = 500;

// in the order of edgekv_miss_reason
constexpr const char * REASONS[] = { "none", "disabled", "not_attached", "model_unknown", "cold", "diverged", "other_settings", "no_checkpoint",
                                     "inside_media", "no_cells", "cheaper_to_compute", "tier_down", "damaged" };
static_assert(std::size(REASONS) == EDGEKV_MISS_REASONS, "each reason has a name");

constexpr const char * TIERS[] = { "slot", "ram", "disk", "remote" };
static_assert(std::size(TIERS) == EDGEKV_TIERS, "each tier has a name");

// whether the tokens were read before, as far as anybody knows, and were to be found
bool is_loss(int reason) {
    return reason != EDGEKV_MISS_NONE && reason != EDGEKV_MISS_COLD && reason != EDGEKV_MISS_DISABLED && reason != EDGEKV_MISS_CHEAPER_TO_COMPUTE;
}

void tell(const edgekv_server_request & request) {
    if (current().request) {
        current().request(&request);
    }
}

json prefix_cache_json(const edgekv_server_request & found) {
    json told = { {"tokens", found.n_found}, {"tier", nullptr}, {"reason", nullptr}, {"at_token", nullptr} };
    for (int i = 0; i < EDGEKV_TIERS; ++i) {
        if (found.by_tier[i] > 0) {
            told["tier"] = TIERS[i];  // the slowest that gave any
        }
    }
    if (found.missed != EDGEKV_MISS_NONE) {
        told["reason"]   = REASONS[found.missed];
        told["at_token"] = found.missed_at;
    }

    return told;
}

}  // namespace

edgekv_server_request prefix_found(int slot, int task, int n_prompt, int n_past, const edgekv_cached_tokens & cached) {
    edgekv_server_request found = {};
    found.slot     = slot;
    found.task     = task;
    found.n_prompt = n_prompt;
    found.n_found  = std::max(0, std::min(n_past, n_prompt - 1));
    int n_left = found.n_found;
    const int sources[] = { cached.slot + cached.shared, cached.ram, cached.disk, cached.remote };
    for (int i = 0; i < EDGEKV_TIERS; ++i) {
        found.by_tier[i] = std::min(n_left, sources[i]);
        n_left -= found.by_tier[i];
    }
    found.by_tier[0] += n_left;  // moved within the slot, or rows that were not asked for
    if (found.n_found >= n_prompt - 1) {
        return found;
    }
    const bool behind = cached.missed_at < found.n_found;  // the sequence itself had more than what is kept
    found.missed    = cached.missed == EDGEKV_MISS_NONE || (behind && cached.missed == EDGEKV_MISS_DIVERGED) ? EDGEKV_MISS_COLD : cached.missed;
    found.missed_at = std::max(cached.missed_at, found.n_found);
    return found;
}

void tell_found(edgekv_server_request found) {
    const int n_missed = std::max(0, found.n_prompt - 1 - found.n_found);  // the last token is computed in any case
    const int n_read   = found.n_prompt - found.n_found;
    std::string line = string_format("slot %d, task %d has %d tokens of its prompt of %d", found.slot, found.task, found.n_found, found.n_prompt);
    for (int i = 0, n = 0; i < EDGEKV_TIERS; ++i) {
        if (found.by_tier[i] > 0) {
            line += string_format("%s %d from %s", n++ ? "," : ":", found.by_tier[i], TIERS[i]);
        }
    }
    if (found.missed == EDGEKV_MISS_DIVERGED) {
        line += string_format("; diverged: a kept conversation goes on differently at token %d; %d tokens are read again", found.missed_at, n_read);
    } else if (found.missed != EDGEKV_MISS_NONE) {
        line += string_format("; the others are computed: %s, at token %d", REASONS[found.missed], found.missed_at);
    }
    const bool loud = n_missed > MANY && is_loss(found.missed);
    if (loud) {
        SRV_WRN("%s\n", line.c_str());
    } else {
        SRV_INF("%s\n", line.c_str());
    }
    found.n_lost = loud ? n_read : 0;
    set_found(found.task, found);
    edgekv_sequence_of(found.slot).begun = found;
    tell(found);
}

edgekv_server_request begun_of(int slot, int task) {
    const auto & begun = edgekv_sequence_of(slot).begun;
    return begun.task == task ? begun : edgekv_server_request{};
}

void request_ended(const edgekv_server_request & request) {
    edgekv_sequence_of(request.slot).begun = {};
    tell(request);
}

}  // namespace edgekv_server

json edgekv_usage_json(int task) {
    const auto known    = edgekv_server::known_of(task);
    const auto & cached = known.cached;
    json usage;
    usage["prefix_cache"]  = edgekv_server::prefix_cache_json(known.found);
    usage["cached_tokens"] = {
        {"slot", cached.slot}, {"shared", cached.shared}, {"ram", cached.ram}, {"disk", cached.disk}, {"remote", cached.remote} };
    edgekv_server::add_rolled(usage, known.rolled);
    if (const auto & marks = known.marks.marks; edgekv_prefixes_kept() && !marks.empty()) {
        usage["kept"] = { {"tokens", marks.back().n}, {"ttl_s", marks.back().ttl_s} };
    }

    return usage;
}
