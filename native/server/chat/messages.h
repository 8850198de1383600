// One rule for the messages of all chat templates: each message's text stands in the prompt, or the request is refused and names the message.
// Threads of requests.
#pragma once

#include "chat.h"
#include "server-common.h"
#include "server-http.h"

#include <functional>
#include <string>

namespace edgekv_server {

// Brings messages into the form that upstream reads. Media that the model cannot take become a sentence in tools' results and in all messages before
// the newest of the user's, which is refused later; a refusal becomes the text that it is.
void take_messages(json & messages, const server_chat_params & opt);

// For common_chat_templates_inputs::edgekv_fit: renders messages as asked; only if the template refuses them, or leaves a text out, as repaired
// (server/repairs.h). "edgekv_messages" of `converted`, which must outlive the function, then says what was moved. The function throws
// std::invalid_argument if a message cannot be shown, and the template's own exception if that has another cause.
std::function<common_chat_params(const common_chat_templates *, const common_chat_templates_inputs &)> fitting(json & converted);

// Tells the client what was moved.
void tell_moved(server_http_res & res, const json & converted);

// an id for a call: nine letters or digits, which every template takes
std::string call_id();

}  // namespace edgekv_server
