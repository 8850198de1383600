#include "server/waits.h"

#include "server/pace.h"

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
    const double seconds = std::max(0.0, double(now_us - since_us) * 1e-6);
    std::lock_guard<std::mutex> lock(s.mutex);
    waits & to = s.of[size_t(which)];
    to.counts[std::lower_bound(WAIT_BOUNDS.begin(), WAIT_BOUNDS.end(), seconds) - WAIT_BOUNDS.begin()]++;
    to.sum_s += seconds;
}

} // namespace

void begin_waits() {
    auto & s = the_waits();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.of = {};
    running_slots() = 0;
}

void waited_for_slot(int64_t asked_us, int64_t now_us) {
    add(wait::queue, asked_us, now_us);
}

void waited_for_token(int32_t n_gen, int64_t asked_us, int64_t since_us, int64_t now_us) {
    add(n_gen < 2 ? wait::first_token : wait::next_token, n_gen < 2 ? asked_us : since_us, now_us);
    answer_token(n_gen, since_us, now_us);
}

waits waited(wait which) {
    auto & s = the_waits();
    std::lock_guard<std::mutex> lock(s.mutex);
    return s.of[size_t(which)];
}

std::atomic<int32_t> & running_slots() {
    static std::atomic<int32_t> n{ 0 };
    return n;
}

} // namespace edgekv_server
