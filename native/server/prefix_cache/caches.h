// Prompts that stay, over HTTP: a client lists, changes and removes those of its key. The program around the server answers
// (edgekv_server_on_caches()); a thread of a request calls it and waits.
#pragma once

#include "server-http.h"

namespace edgekv_server {

// what answers requests of a method: GET, POST or DELETE
server_http_context::handler_t kept_prompts(const char * method);

}  // namespace edgekv_server
