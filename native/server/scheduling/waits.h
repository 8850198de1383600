// The clients' waiting times: for a slot, for the first token of an answer, and for each later token. The decoding thread counts, other
// threads read.
#pragma once

#include <atomic>
#include <cstdint>

namespace edgekv_server {

// call it before a server starts
void begin_waits();

// a task has its slot
void waited_for_slot(int task, int64_t now_us);

// a task's answer got its n_gen-th token (1 is the first), and the previous one at since_us
void waited_for_token(int task, int32_t n_gen, int64_t since_us, int64_t now_us);

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
