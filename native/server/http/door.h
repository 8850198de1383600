// The endpoints as their clients see them: what a request may hold, and how its answer is told. Threads of requests.
#pragma once

#include "server-http.h"

namespace edgekv_server {

// The answer to a request of an endpoint whose fields stand in the table (server/http/fields.h); null: another one, which `handler` answers as it is.
// Throws std::invalid_argument for a body that check_body() refuses.
server_http_res_ptr answered(const server_http_req & request, const server_http_context::handler_t & handler);

// Answers GET .../models/NAME, of a model's name or another that it goes by, with its entry in what `list` answers; 404 in OpenAI's form: there is none.
server_http_context::handler_t one_model(server_http_context::handler_t list);

}  // namespace edgekv_server
