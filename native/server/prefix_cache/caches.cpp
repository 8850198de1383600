#include "server/prefix_cache/caches.h"

#include "server/prefix_cache/cache.h"
#include "server/prefix_cache/spaces.h"
#include "server/scheduling/requests.h"

#include <stdexcept>

namespace edgekv_server {

namespace {

server_http_res_ptr answer(const char * method, const server_http_req & req) {
    auto res = std::make_unique<server_http_res>();
    res->headers["Cache-Control"] = "no-store";
    const auto function = the_cache().answers.load();
    if (!function) {
        answer_error(*res, "this server keeps no prompts; start it with --cache-ram or --cache-dir", ERROR_TYPE_NOT_SUPPORTED);
        return res;
    }
    json fields = req.body.empty() ? json::object() : json::parse(req.body);
    if (!fields.is_object()) {
        throw std::invalid_argument("the request must be a JSON object");
    }
    for (const auto & [name, value] : req.params) {
        fields[name] = value;
    }
    res->status = function(method, space_of(req.headers, fields).c_str(), fields.dump().c_str(), &res->data);
    return res;
}

}  // namespace

server_http_context::handler_t kept_prompts(const char * method) {
    return [method](const server_http_req & req) { return answer(method, req); };
}

}  // namespace edgekv_server

void edgekv_server_on_caches(int (*function)(const char *, const char *, const char *, void *)) { edgekv_server::the_cache().answers = function; }
