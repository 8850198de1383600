#include "server/scheduling/progress.h"

#include "server/prefix_cache/prefixes.h"

#include <algorithm>
#include <atomic>
#include <iterator>

namespace edgekv_server {
namespace {

std::atomic<void (*)(const edgekv_server_request *)> g_on_request{ nullptr };

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
    edgekv_sequence_of(slot).begun = of;
    tell(of);
}

edgekv_server_request begun_of(int slot, int task) {
    const auto & begun = edgekv_sequence_of(slot).begun;
    return begun.task == task ? begun : edgekv_server_request{};
}

void request_ended(const edgekv_server_request & request) {
    edgekv_sequence_of(request.slot).begun = {};
    tell(request);
}

}  // namespace edgekv_server

void edgekv_server_on_request(void (*function)(const edgekv_server_request *)) { edgekv_server::g_on_request = function; }
