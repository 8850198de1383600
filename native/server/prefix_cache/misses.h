// How many tokens of a prompt the prefix cache had, and why not more: for its reply, the log and the metrics; and what its request does, for the page when
// the prompt begins and for a line to people when the request ends. Decoding thread.
#pragma once

#include "edgekv_server.h"
#include "server-common.h"

#include "ggml.h"

namespace edgekv_server {

// What was found of a task's prompt of n_prompt tokens, which begins behind its first n_past; `cached`: their sources, and why there are no more. Its last
// token, which is always computed, counts neither as found nor as missed.
edgekv_server_request prefix_found(int slot, int task, int n_prompt, int n_past, const edgekv_cached_tokens & cached);

// The prompt begins: notes what was found for the task's reply, tells the program around the server, and writes a line into the log.
void tell_found(edgekv_server_request found);

// n_prompt 0: the task's prompt has not begun
edgekv_server_request begun_of(int slot, int task);
void request_ended(const edgekv_server_request & request);

// a slot's task ends
template <typename Slot>
void tell_ended(const Slot & slot) {
    const auto & stats = slot.stats;
    auto of = begun_of(slot.id, slot.task->id);
    if (of.n_prompt == 0) {
        return;
    }
    of.ended    = 1;
    of.n_read   = static_cast<int32_t>(stats.n_prompt_processed);
    of.n_answer = static_cast<int32_t>(stats.n_gen);
    of.read_s   = stats.t_start > 0 ? ((stats.n_gen > 0 ? stats.t_prompt_last : ggml_time_us()) - stats.t_start) * 1e-6 : 0;
    of.answer_s = stats.n_gen > 1 ? stats.t_gen_us() * 1e-6 : 0;
    request_ended(of);
}

}  // namespace edgekv_server
