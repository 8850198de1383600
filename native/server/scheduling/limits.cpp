#include "server/scheduling/limits.h"

#include "server/scheduling/drafts.h"
#include "server/scheduling/pace.h"
#include "server/scheduling/waits.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <unordered_map>

namespace edgekv_server {
namespace {

constexpr auto   LAST_WORDS   = std::chrono::seconds(5);
constexpr double NEWEST_REQUEST = 0.2;  // weight of the newest request in the running mean of their time
constexpr double MOST_RETRY_S = 60;

struct limits_state {
    std::mutex              mutex;
    std::condition_variable gone;
    edgekv_server_settings  set = {};
    std::unordered_map<const void *, std::chrono::steady_clock::time_point> places;  // by reader: the time when it took its place
    uint64_t                n_refused = 0;
    double                  request_s = 1;  // a running mean
    bool                    stopping  = false;
};

limits_state & the_limits() {
    static limits_state s;
    return s;
}

}  // namespace

void begin(const edgekv_server_settings & settings) {
    auto & s = the_limits();
    {
        std::lock_guard<std::mutex> lock(s.mutex);
        s.set       = settings;
        s.n_refused = 0;
        s.places.clear();
        s.request_s = 1;
        s.stopping  = false;
    }
    begin_pace(s.set.max_gap_s);
    begin_drafts(s.set.drafts);
    begin_waits();
}

const edgekv_server_settings & current() { return the_limits().set; }

bool stopping() {
    auto & s = the_limits();
    std::lock_guard<std::mutex> lock(s.mutex);
    return s.stopping;
}

void end_answers() {
    auto & s = the_limits();
    std::unique_lock<std::mutex> lock(s.mutex);
    s.stopping = true;
    s.gone.wait_for(lock, LAST_WORDS, [&] { return s.places.empty(); });
}

std::string take_place(const void * reader) {
    auto & s = the_limits();
    std::lock_guard<std::mutex> lock(s.mutex);
    if (s.stopping) {
        return STOPPING;
    }
    const int64_t most = int64_t{s.set.n_slots} + s.set.max_queue;
    if (s.set.max_queue >= 0 && static_cast<int64_t>(s.places.size()) >= most) {
        s.n_refused++;
        return "the server is busy: " + std::to_string(s.set.n_slots) + " requests are answered and " + std::to_string(s.set.max_queue) +
               " wait, and it takes no more; try again later";
    }
    s.places[reader] = std::chrono::steady_clock::now();
    return {};
}

void leave_place(const void * reader) {
    auto & s = the_limits();
    {
        std::lock_guard<std::mutex> lock(s.mutex);
        const auto place = s.places.find(reader);
        if (place == s.places.end()) {
            return;
        }
        s.request_s += NEWEST_REQUEST * (std::chrono::duration<double>(std::chrono::steady_clock::now() - place->second).count() - s.request_s);
        s.places.erase(place);
    }
    s.gone.notify_all();
}

int retry_after_s() {
    auto & s = the_limits();
    std::lock_guard<std::mutex> lock(s.mutex);
    // a request holds its place for request_s on average, and the first free place is enough
    const double wait_s = s.request_s / static_cast<double>(std::max<size_t>(1, s.places.size()));
    return static_cast<int>(std::ceil(std::clamp(wait_s, 1.0, MOST_RETRY_S)));
}

void count_requests(edgekv_server_pacing & to) {
    auto & s = the_limits();
    std::lock_guard<std::mutex> lock(s.mutex);
    to.n_requests = static_cast<int32_t>(s.places.size());
    to.n_refused  = s.n_refused;
}

}  // namespace edgekv_server
