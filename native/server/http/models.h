// One of the models that a server has. Threads of requests.
#pragma once

#include "server-http.h"

namespace edgekv_server {

// Answers GET .../models/NAME, of a model's name or another that it goes by, with its entry in what `list` answers; 404 in OpenAI's form: there is none.
server_http_context::handler_t one_model(server_http_context::handler_t list);

}  // namespace edgekv_server
