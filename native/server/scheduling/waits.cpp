#include "server/scheduling/waits.h"

#include "edgekv_server.h"
#include "server/scheduling/pace.h"
#include "server/prefix_cache/tasks.h"

#include <algorithm>
#include <iterator>
#include <mutex>

namespace edgekv_server {
namespace {

// vLLM's bounds for its time to first token
constexpr edgekv_server_waits NO_WAITS = { { 0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                             1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560 }, {}, 0 };

struct all_waits {
    std::mutex          mutex;
    edgekv_server_waits of[3] = { NO_WAITS, NO_WAITS, NO_WAITS };  // by edgekv_wait
};

all_waits & the_waits() {
    static all_waits s;
    return s;
}

void add(edgekv_wait which, int64_t since_us, int64_t now_us) {
    auto & s = the_waits();
    const double seconds = std::max(0.0, static_cast<double>(now_us - since_us) * 1e-6);
    std::lock_guard<std::mutex> lock(s.mutex);
    edgekv_server_waits & to = s.of[which];
    to.counts[std::lower_bound(std::begin(to.bounds), std::end(to.bounds), seconds) - std::begin(to.bounds)]++;
    to.sum_s += seconds;
}

void add_since_posted(edgekv_wait which, int task, int64_t now_us) {
    const int64_t since_us = known_of(task).posted_us;
    if (since_us >= 0) {
        add(which, since_us, now_us);
    }
}

}  // namespace

void begin_waits() {
    auto & s = the_waits();
    std::lock_guard<std::mutex> lock(s.mutex);
    std::fill(std::begin(s.of), std::end(s.of), NO_WAITS);
    running_slots() = 0;
}

void waited_for_slot(int task, int64_t now_us) { add_since_posted(EDGEKV_WAIT_QUEUE, task, now_us); }

void waited_for_token(int task, int32_t n_gen, int64_t since_us, int64_t now_us) {
    if (n_gen < 2) {
        add_since_posted(EDGEKV_WAIT_FIRST_TOKEN, task, now_us);
    } else {
        add(EDGEKV_WAIT_NEXT_TOKEN, since_us, now_us);
    }
    answer_token(n_gen, since_us, now_us);
}

std::atomic<int32_t> & running_slots() {
    static std::atomic<int32_t> n{ 0 };
    return n;
}

}  // namespace edgekv_server

void edgekv_server_waited(edgekv_wait which, edgekv_server_waits * waits) {
    auto & s = edgekv_server::the_waits();
    std::lock_guard<std::mutex> lock(s.mutex);
    *waits = s.of[which];
}
