#include "server/http/documents.h"

#include "edgekv_server.h"
#include "server/scheduling/limits.h"
#include "server/scheduling/requests.h"

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace edgekv_documents {
namespace {

using steady = std::chrono::steady_clock;

struct document {
    std::string type;
    std::string text;
    std::optional<steady::time_point> asked;  // last
};

std::mutex                      g_documents_mutex;
std::map<std::string, document> g_documents;
std::atomic<bool>               g_busy{true};  // a server that was loaded has worked

// nothing: there is no such document
std::optional<document> take(const std::string & path) {
    const std::lock_guard<std::mutex> lock(g_documents_mutex);
    const auto found = g_documents.find(path);
    if (found == g_documents.end()) {
        return std::nullopt;
    }
    found->second.asked = steady::now();
    return found->second;
}

// null: there is no such document, or it is empty
json take_json(const std::string & name) {
    const auto found = take(name);
    return found ? json::parse_no_throw(found->text) : json();
}

}  // namespace

void set_busy() { g_busy = true; }

void refresh(bool idle, bool is_yielding) {
    if (edgekv_server::current().refresh && !is_yielding) {
        edgekv_server::current().refresh(idle);
    }
    if (idle && g_busy.exchange(false)) {  // only now are the figures of the work's end published
#ifdef __GLIBC__
        malloc_trim(0);  // a load and a prompt leave megabytes that nobody uses; half a millisecond
#endif
    }
}

server_http_res_ptr serve(const server_http_req & req) {
    auto res = std::make_unique<server_http_res>();
    auto found = take(req.path);
    if (!found) {
        edgekv_server::answer_error(*res, "File Not Found", ERROR_TYPE_NOT_FOUND);
        return res;
    }
    res->content_type = std::move(found->type);
    res->data         = std::move(found->text);
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
    if (const auto ours = take("metrics")) {
        text += ours->text;
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
    if (found == g_documents.end() || !found->second.asked) {
        return -1;
    }
    return std::chrono::duration_cast<std::chrono::milliseconds>(steady::now() - *found->second.asked).count();
}
