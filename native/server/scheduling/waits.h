// The clients' waiting times: for a slot, for the first token of an answer, and for each later token. The decoding thread counts, other
// threads read.
#pragma once

#include "server/scheduling/drafts.h"

#include <atomic>
#include <cstdint>

namespace edgekv_server {

// call it before a server starts
void begin_waits();

// a task has its slot
void waited_for_slot(int task, int64_t now_us);

// a task's answer got its n_gen-th token (1 is the first), and the previous one at since_us
void waited_for_token(int task, int32_t n_gen, int64_t since_us, int64_t now_us);

// A step ended at now_us: a slot's answer of n_gen tokens got its next one, and n_taken of n_drafted tokens behind it.
template <typename Slot>
void answer_step(const Slot & slot, int n_gen, int n_drafted, int n_taken, int64_t now_us) {
    step_ended(slot.id, n_gen, n_drafted, n_taken, slot.stats.t_gen_last, now_us);
    waited_for_token(slot.task->id, n_gen + 1, slot.stats.t_gen_last, now_us);
}

// number of busy slots
std::atomic<int32_t> & running_slots();

template <typename Slots>
void tell_running(const Slots & slots) {
    int32_t n = 0;
    for (const auto & slot : slots) {
        n += slot.is_processing();
    }
    running_slots() = n;
}

}  // namespace edgekv_server
