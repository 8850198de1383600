// The endpoints as their clients see them: what a request may hold, and how its answer is told. Threads of requests.
#pragma once

#include "server-http.h"

namespace edgekv_server {

// The answer to a request of an endpoint whose fields stand in the table (server/http/fields.h); null: another one, which `handler` answers as it is.
// Throws std::invalid_argument for a body that check_body() refuses.
server_http_res_ptr answered(const server_http_req & request, const server_http_context::handler_t & handler);

// The paths that upstream has not: the page on the KV hierarchy, which is public, and its figures; the prompts that stay; .../models/NAME. `wrapped`: makes
// answers of a handler's exceptions. `list`: answers with all models.
using handler = server_http_context::handler_t;
void add_routes(const server_http_context & http, handler (*wrapped)(handler), const handler & list);

}  // namespace edgekv_server
