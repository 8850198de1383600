// Answers that must have a form, a schema's or a grammar's, on models that think first.
#pragma once

#include "chat.h"
#include "server-common.h"
#include "server/chat/choices.h"

namespace edgekv_server {

// Lets the form of a request hold for the answer, and for the answer alone; and the schemas of strict tools for their calls. `task`: the parameters of
// the request's task.
void shape_answer(const common_chat_params & chat, const common_chat_templates_inputs & inputs, const common_chat_templates * templates,
                  const tool_choice & choice, json & task);

}  // namespace edgekv_server
