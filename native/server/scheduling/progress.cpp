#include "server/scheduling/progress.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace edgekv_server {
namespace {

std::mutex                         g_mutex;
std::vector<edgekv_server_request> g_now;

std::atomic<void (*)(const edgekv_server_request *)> g_on_request{ nullptr };

// by slot: the newest prompt; the decoding thread's
std::unordered_map<int, edgekv_server_request> g_begun;

}  // namespace

void prompt_begun(int slot, int task, int n_prompt, const found_prefix & found, int n_lost) {
    edgekv_server_request of = {};
    of.slot = slot;
    of.task = task;
    of.n_prompt  = n_prompt;
    of.n_found   = found.n;
    of.n_lost    = n_lost;
    of.missed    = found.reason;
    of.missed_at = found.at;
    std::copy(std::begin(found.by_tier), std::end(found.by_tier), of.by_tier);
    g_begun[slot] = of;
}

void set_progress(std::vector<edgekv_server_request> now) {
    const std::lock_guard<std::mutex> lock(g_mutex);
    g_now = std::move(now);
}

std::vector<edgekv_server_request> progress() {
    const std::lock_guard<std::mutex> lock(g_mutex);
    return g_now;
}

void on_request(void (*function)(const edgekv_server_request *)) { g_on_request = function; }

edgekv_server_request begun_of(int slot, int task) {
    const auto found = g_begun.find(slot);
    return found != g_begun.end() && found->second.task == task ? found->second : edgekv_server_request{};
}

void request_ended(const edgekv_server_request & request) {
    g_begun.erase(request.slot);
    {
        const std::lock_guard<std::mutex> lock(g_mutex);
        if (static_cast<size_t>(request.slot) < g_now.size()) {
            g_now[request.slot] = { request.slot };
        }
    }
    if (auto * function = g_on_request.load()) {
        function(&request);
    }
}

}  // namespace edgekv_server
