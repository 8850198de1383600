// The endpoints as their clients see them: what a request may hold, and how its answer is told. Threads of requests.
#pragma once

#include "server-http.h"

namespace edgekv_server {

// The answer to a request of an endpoint whose fields stand in the table (server/http/fields.h); null: another one, which `handler` answers as it is.
server_http_res_ptr answered(const server_http_req & request, const server_http_context::handler_t & handler);

}  // namespace edgekv_server
