// How many tokens of a prompt the prefix cache had, and why not more: for its reply, the log and the metrics.
#pragma once

#include "edgekv_server.h"
#include "server-common.h"

namespace edgekv_server {

// What was found of a prompt, for its reply. Its last token, which is always computed, counts neither as found nor as missed.
struct found_prefix {
    int n = 0;                           // tokens
    int reason = EDGEKV_MISS_NONE;
    int at = 0;                          // the first token that the reason is about
    int by_tier[EDGEKV_TIERS] = {};
};

// A prompt of n_prompt tokens begins behind its first n_past; `cached`: their sources, and why there are no more.
found_prefix prefix_found(int n_prompt, int n_past, const edgekv_cached_tokens & cached);

// Counts it, notes it for the task's reply and its line to people, and writes a line into the log. On the decoding thread.
void tell_found(int seq_id, int task, int n_prompt, const found_prefix & found);

json prefix_cache_json(const found_prefix & found);

void begin_prefix_counts();

}  // namespace edgekv_server
