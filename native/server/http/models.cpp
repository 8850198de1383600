#include "server/http/models.h"

#include "server-common.h"

#include <algorithm>
#include <string>
#include <utility>

namespace edgekv_server {

server_http_context::handler_t one_model(server_http_context::handler_t list) {
    return [list = std::move(list)](const server_http_req & req) {
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

}  // namespace edgekv_server
