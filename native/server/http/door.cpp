#include "server/http/door.h"

#include "server/chat/schemas.h"
#include "server/dialects/dialect.h"
#include "server/http/documents.h"
#include "server/http/fields.h"
#include "server/http/guards.h"
#include "server/prefix_cache/marks.h"
#include "server/scheduling/requests.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace edgekv_server {
namespace {

// An answer beside the request that it was made for, which upstream's handler keeps a pointer to.
struct told : server_http_res {
    server_http_req          request;
    server_http_res_ptr      answer;
    std::unique_ptr<dialect> by;

    explicit told(const server_http_req & given) : request(given) {}

    void on_complete() override {
        if (answer) {
            answer->on_complete();
        }
    }
};

struct place {
    const char * path;  // what follows a prefix
    endpoint     where;
};

constexpr place PLACES[] = {
    { "/chat/completions",              endpoint::chat },
    { "/chat/completions/input_tokens", endpoint::chat },
    { "/v1/completions",                endpoint::completions },
    { "/responses",                     endpoint::responses },
    { "/responses/input_tokens",        endpoint::responses },
    { "/v1/messages",                   endpoint::messages },
    { "/v1/messages/count_tokens",      endpoint::messages },
    { "/embeddings",                    endpoint::embeddings },
    { "/rerank",                        endpoint::rerank },
    { "/reranking",                     endpoint::rerank },
};

std::optional<endpoint> endpoint_of(const std::string & path) {
    for (const auto & at : PLACES) {
        if (string_ends_with(path, at.path)) {
            return at.where;
        }
    }
    return std::nullopt;
}

std::unique_ptr<dialect> dialect_of(endpoint where) {
    switch (where) {
        case endpoint::messages:   return make_messages();
        case endpoint::responses:  return make_responses();
        case endpoint::embeddings: return make_lists(false);
        case endpoint::rerank:     return make_lists(true);
        default:                   return make_openai(where == endpoint::chat);
    }
}

bool is_chat(endpoint where) { return where == endpoint::chat || where == endpoint::responses || where == endpoint::messages; }

bool counts_tokens(const std::string & path) { return path.find("_tokens") != std::string::npos; }

// A field that is null asks for nothing in any API, and not all who read the fields know that.
void leave_out_nulls(json & body) {
    if (!body.is_object()) {
        return;
    }
    std::vector<std::string> nulls;
    for (const auto & field : body.items()) {
        if (field.value().is_null()) {
            nulls.push_back(field.key());
        }
    }
    for (const auto & name : nulls) {
        body.erase(name);
    }
}

// Tells the answer, or its error, as the request's API has it.
void tell(told & res) {
    json body = json::parse_no_throw(res.data);
    if (!body.is_object()) {
        return;
    }
    if (res.status >= 400) {
        res.by->tell_error(body);
    } else if (!counts_tokens(res.request.path)) {
        res.by->tell(body);
    }
    res.data = safe_json_to_str(body);
}

}  // namespace

server_http_res_ptr answered(const server_http_req & request, const server_http_context::handler_t & handler) {
    edgekv_guards::check_body(request.body);  // a stack that overflows would end the process
    const auto where = endpoint_of(request.path);
    if (!where) {
        return nullptr;
    }
    auto res = std::make_unique<told>(request);
    res->by  = dialect_of(*where);
    try {
        json body = json::parse(request.body);
        leave_out_nulls(body);
        check_fields(body, *where);
        take_form(body, *where);
        res->by->take(body);
        res->request.body = body.dump();
        if (is_chat(*where) && !counts_tokens(request.path) && sign_marks(body)) {
            res->request.body = body.dump();
        }
        res->answer = handler(res->request);
    } catch (const std::exception & e) {
        answer_error(*res, e.what(), fault(e));
        tell_ignored(*res);
        tell(*res);
        return res;
    }
    tell_ignored(*res);
    server_http_res & answer = *res->answer;
    res->content_type = answer.content_type;
    res->status       = answer.status;
    res->data         = std::move(answer.data);
    res->headers.insert(answer.headers.begin(), answer.headers.end());
    if (!answer.is_stream()) {
        tell(*res);
        return res;
    }
    answer.data = std::move(res->data);  // a stream's first piece, which its next() sends
    res->next   = [&answer, by = res->by.get()](std::string & output) {
        const bool more = answer.next(output);
        output = told_events(output, *by);
        return more;
    };
    return res;
}

// Answers GET .../models/NAME, of a model's name or another that it goes by, with its entry in what `list` answers; 404 in OpenAI's form: there is none.
static handler one_model(const handler & list) {
    return [list](const server_http_req & req) {
        static const std::string BEFORE = "/models/";
        server_http_res_ptr res = list(req);
        const json models = json::parse_no_throw(res->data).value("data", json::array());
        const std::string name = req.path.substr(req.path.find(BEFORE) + BEFORE.size());
        const auto found = std::find_if(models.begin(), models.end(), [&](const json & model) {
            const json aliases = model.value("aliases", json::array());
            return model.at("id") == name || std::find(aliases.begin(), aliases.end(), name) != aliases.end();
        });
        if (found != models.end()) {
            res->data = safe_json_to_str(*found);
            return res;
        }
        res->status = 404;
        res->data   = safe_json_to_str({{ "error", {{ "message", "there is no model '" + name + "' here; /v1/models lists the models" },
                                                    { "type", "invalid_request_error" }, { "param", "model" }, { "code", "model_not_found" }} }});
        return res;
    };
}

void add_routes(const server_http_context & http, handler (*wrapped)(handler), const handler & list) {
    for (const char * path : { "/edgekv", "/edgekv/state", "/edgekv/history", "/edgekv/map/:id_slot" }) {
        http.get(path, wrapped(edgekv_documents::serve));
    }
    http.get ("/edgekv/cache", wrapped(kept_prompts("GET")));
    http.post("/edgekv/cache", wrapped(kept_prompts("POST")));
    http.del ("/edgekv/cache", wrapped(kept_prompts("DELETE")));
    http.get("/(?:v1/)?models/(.+)", wrapped(one_model(list)));
}

}  // namespace edgekv_server
