#include "server/scheduling/progress.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <unordered_map>

namespace edgekv_server {
namespace {

std::atomic<void (*)(const edgekv_server_request *)> g_on_request{ nullptr };

// by slot: the newest prompt; the decoding thread's
std::unordered_map<int, edgekv_server_request> g_begun;

void tell(const edgekv_server_request & request) {
    if (auto * function = g_on_request.load()) {
        function(&request);
    }
}

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
    tell(of);
}

edgekv_server_request begun_of(int slot, int task) {
    const auto found = g_begun.find(slot);
    return found != g_begun.end() && found->second.task == task ? found->second : edgekv_server_request{};
}

void request_ended(const edgekv_server_request & request) {
    g_begun.erase(request.slot);
    tell(request);
}

}  // namespace edgekv_server

void edgekv_server_on_request(void (*function)(const edgekv_server_request *)) { edgekv_server::g_on_request = function; }
