// Prompts that stay, over HTTP: a client lists, changes and removes those of its key. The program around the server answers
// (edgekv_server_on_caches()); a thread of a request calls it and waits.
#pragma once

#include "server-http.h"

namespace edgekv_server {

server_http_res_ptr list_caches(const server_http_req & req);
server_http_res_ptr change_caches(const server_http_req & req);
server_http_res_ptr remove_caches(const server_http_req & req);

}  // namespace edgekv_server
