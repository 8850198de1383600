#include "server/scheduling/waits.h"

#include "server/scheduling/pace.h"
#include "server/prefix_cache/tasks.h"

#include <algorithm>
#include <mutex>

namespace edgekv_server {
namespace {

struct all_waits {
    std::mutex           mutex;
    std::array<waits, 3> of;
};

all_waits & the_waits() {
    static all_waits s;
    return s;
}

void add(wait which, int64_t since_us, int64_t now_us) {
    auto & s = the_waits();
    const double seconds = std::max(0.0, static_cast<double>(now_us - since_us) * 1e-6);
    std::lock_guard<std::mutex> lock(s.mutex);
    waits & to = s.of[static_cast<size_t>(which)];
    to.counts[std::lower_bound(WAIT_BOUNDS.begin(), WAIT_BOUNDS.end(), seconds) - WAIT_BOUNDS.begin()]++;
    to.sum_s += seconds;
}

void add_since_posted(wait which, int task, int64_t now_us) {
    const int64_t since_us = posted_us(task);
    if (since_us >= 0) {
        add(which, since_us, now_us);
    }
}

}  // namespace

void begin_waits() {
    auto & s = the_waits();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.of = {};
    running_slots() = 0;
}

void waited_for_slot(int task, int64_t now_us) { add_since_posted(wait::queue, task, now_us); }

void waited_for_token(int task, int32_t n_gen, int64_t since_us, int64_t now_us) {
    if (n_gen < 2) {
        add_since_posted(wait::first_token, task, now_us);
    } else {
        add(wait::next_token, since_us, now_us);
    }
    answer_token(n_gen, since_us, now_us);
}

waits waited(wait which) {
    auto & s = the_waits();
    std::lock_guard<std::mutex> lock(s.mutex);
    return s.of[static_cast<size_t>(which)];
}

std::atomic<int32_t> & running_slots() {
    static std::atomic<int32_t> n{ 0 };
    return n;
}

}  // namespace edgekv_server
