#include "server/limits.h"

#include "server/pace.h"
#include "server/waits.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>

namespace edgekv_server {

namespace {

constexpr auto   LAST_WORDS   = std::chrono::seconds(5);
constexpr double NEWEST_REQUEST = 0.2; // of the running mean of what a request takes
constexpr double MOST_RETRY_S = 60;

struct limits_state {
    std::mutex              mutex;
    std::condition_variable gone;
    limits                  set;
    traffic                 seen;
    double                  request_s = 1; // a running mean
    bool                    stopping  = false;
    bool                    embedded  = false;
};

limits_state & the_limits() {
    static limits_state s;
    return s;
}

} // namespace

void begin(const limits & l) {
    auto & s = the_limits();
    {
        std::lock_guard<std::mutex> lock(s.mutex);
        s.set       = l;
        s.seen      = {};
        s.request_s = 1;
        s.stopping  = false;
        s.embedded  = true;
    }
    begin_pace(l.max_gap_s);
    begin_waits();
}

const limits & current() {
    return the_limits().set;
}

bool embedded() {
    auto & s = the_limits();
    std::lock_guard<std::mutex> lock(s.mutex);
    return s.embedded;
}

bool stopping() {
    auto & s = the_limits();
    std::lock_guard<std::mutex> lock(s.mutex);
    return s.stopping;
}

void end_answers() {
    auto & s = the_limits();
    std::unique_lock<std::mutex> lock(s.mutex);
    s.stopping = true;
    s.gone.wait_for(lock, LAST_WORDS, [&] { return s.seen.n_requests == 0; });
}

bool ticket::take() {
    auto & s = the_limits();
    std::lock_guard<std::mutex> lock(s.mutex);
    if (s.stopping) {
        reason = STOPPING;
        return false;
    }
    const int32_t most = s.set.n_slots + s.set.max_queue;
    if (s.set.max_queue >= 0 && s.seen.n_requests >= most) {
        s.seen.n_refused++;
        reason = "the server is busy: " + std::to_string(s.set.n_slots) + " requests are answered and " + std::to_string(s.set.max_queue) +
                 " wait, and it takes no more; try again later";
        return false;
    }
    s.seen.n_requests++;
    since = std::chrono::steady_clock::now();
    held  = true;
    return true;
}

ticket::~ticket() {
    if (!held) {
        return;
    }
    auto & s = the_limits();
    {
        std::lock_guard<std::mutex> lock(s.mutex);
        s.seen.n_requests--;
        s.request_s += NEWEST_REQUEST * (std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count() - s.request_s);
    }
    s.gone.notify_all();
}

int ticket::retry_after_s() {
    auto & s = the_limits();
    std::lock_guard<std::mutex> lock(s.mutex);
    // a mean request holds its place that long, and one place of all is enough
    const double wait_s = s.request_s / std::max(1, s.seen.n_requests);
    return int(std::ceil(std::clamp(wait_s, 1.0, MOST_RETRY_S)));
}

traffic current_traffic() {
    auto & s = the_limits();
    std::lock_guard<std::mutex> lock(s.mutex);
    return s.seen;
}

} // namespace edgekv_server
