// The clients' waiting times: for a slot, for the first token of an answer, and for each later token. The decoding thread counts, other
// threads read.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace edgekv_server {

enum class wait { queue, first_token, next_token };

// seconds; vLLM's bounds for its time to first token
constexpr std::array<double, 22> WAIT_BOUNDS = { 0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                                 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560 };

struct waits {
    std::array<uint64_t, WAIT_BOUNDS.size() + 1> counts{};  // waits up to each bound and above the previous one; last: longer waits
    double                                       sum_s = 0;
};

// call it before a server starts
void begin_waits();

// a task has its slot
void waited_for_slot(int task, int64_t now_us);

// a task's answer got its n_gen-th token (1 is the first), and the previous one at since_us
void waited_for_token(int task, int32_t n_gen, int64_t since_us, int64_t now_us);

waits waited(wait which);

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
