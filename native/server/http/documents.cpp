#include "server/http/documents.h"

#include "edgekv_server.h"
#include "server/scheduling/requests.h"

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <utility>

namespace edgekv_documents {
namespace {

using steady = std::chrono::steady_clock;

struct document {
    std::string type;
    std::string text;
    bool was_asked = false;
    steady::time_point asked{};
};

std::mutex                      g_documents_mutex;
std::map<std::string, document> g_documents;
std::atomic<void (*)(int)>      g_refresh{nullptr};
std::atomic<bool>               g_busy{false};

// false: there is no such document
bool take(const std::string & path, std::string & type, std::string & text) {
    const std::lock_guard<std::mutex> lock(g_documents_mutex);
    const auto found = g_documents.find(path);
    if (found == g_documents.end()) {
        return false;
    }
    found->second.was_asked = true;
    found->second.asked     = steady::now();
    type = found->second.type;
    text = found->second.text;
    return true;
}

// null: there is no such document, or it is empty
json take_json(const std::string & name) {
    std::string type;
    std::string text;
    return take(name, type, text) ? json::parse_no_throw(text) : json();
}

}  // namespace

void set_busy() { g_busy = true; }

void refresh(bool idle, bool is_yielding) {
    if (void (*function)(int) = g_refresh.load(); function && !is_yielding) {
        function(idle ? 1 : 0);
    }
    if (idle) {
        g_busy = false;  // only now are the figures of the work's end published
    }
}

server_http_res_ptr serve(const server_http_req & req) {
    auto res = std::make_unique<server_http_res>();
    if (!take(req.path, res->content_type, res->data)) {
        edgekv_server::answer_error(*res, "File Not Found", ERROR_TYPE_NOT_FOUND);
        return res;
    }
    res->headers["Cache-Control"] = "no-store";
    res->headers["X-EdgeKV-Busy"] = g_busy ? "1" : "0";
    res->headers["X-Content-Type-Options"] = "nosniff";
    return res;
}

void add_to_props(json & props) {
    json ours = take_json("props");
    if (ours.is_object()) {
        props["edgekv"] = std::move(ours);
    }
}

void add_to_slots(json & slots) {
    json ours = take_json("slots");
    if (!ours.is_array()) {
        return;
    }
    for (json & slot : slots) {
        const int id = json_value(slot, "id", -1);
        if (id >= 0 && static_cast<size_t>(id) < ours.size()) {
            slot["edgekv"] = std::move(ours[id]);
        }
    }
}

void add_to_metrics(std::string & text) {
    std::string type;
    std::string ours;
    if (take("metrics", type, ours)) {
        text += ours;
    }
}

}  // namespace edgekv_documents

void edgekv_server_publish(const char * path, const char * type, const char * text) {
    using namespace edgekv_documents;
    const std::lock_guard<std::mutex> lock(g_documents_mutex);
    document & at = g_documents[path];
    at.type = type;
    at.text = text;
}

void edgekv_server_withdraw() {
    using namespace edgekv_documents;
    const std::lock_guard<std::mutex> lock(g_documents_mutex);
    g_documents.clear();
    g_busy = false;
}

int64_t edgekv_server_asked_ms(const char * path) {
    using namespace edgekv_documents;
    const std::lock_guard<std::mutex> lock(g_documents_mutex);
    const auto found = g_documents.find(path);
    if (found == g_documents.end() || !found->second.was_asked) {
        return -1;
    }
    return std::chrono::duration_cast<std::chrono::milliseconds>(steady::now() - found->second.asked).count();
}

void edgekv_server_on_refresh(void (*function)(int)) { edgekv_documents::g_refresh = function; }
