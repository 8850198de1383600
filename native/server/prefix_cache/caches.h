// Prompts that stay, over HTTP: a client lists, changes and removes those of its key. The program around the server answers; a thread of a
// request calls it and waits.
#pragma once

#include "server-http.h"

namespace edgekv_server {

// the function that answers, as edgekv_server_on_caches() sets it
using caches_function = int (*)(const char * method, const char * space, const char * fields, void * out);
void on_caches(caches_function function);

server_http_res_ptr list_caches(const server_http_req & req);
server_http_res_ptr change_caches(const server_http_req & req);
server_http_res_ptr remove_caches(const server_http_req & req);

}  // namespace edgekv_server
