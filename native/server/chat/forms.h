// Answers that must have a form, a schema's or a grammar's, on models that think first.
#pragma once

#include "chat.h"
#include "server-common.h"

namespace edgekv_server {

// Lets the form of a request hold for the answer, and for the answer alone. `task`: the parameters of the request's task.
void shape_answer(const common_chat_params & chat, const common_chat_templates_inputs & inputs, json & task);

}  // namespace edgekv_server
