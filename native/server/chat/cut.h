// Answers that were cut, and answers that are thinking alone: what their clients are told; and arguments as clients give them back.
#pragma once

#include "chat.h"
#include "server-common.h"
#include "server-task.h"

#include <vector>

namespace edgekv_server {

// A response that its limit ended is incomplete, and so is its last item if that has no end. It gets what tell_thinking() tells of its message, and what
// the prefix cache had for its task.
void tell_response(json & response, stop_type stop, const common_chat_msg & msg, int task);
void tell_response(std::vector<json> & events, stop_type stop, const common_chat_msg & msg, int task);  // of a stream, all that its end brings

// The last call of a message becomes a text behind `blocks` if it was cut within its arguments.
void cut_call(common_chat_msg & msg, stop_type stop, json & blocks);

// `part` of a response gets {"edgekv": {"only_thinking": true}} where the message has neither text nor calls.
void tell_thinking(json & part, const common_chat_msg & msg);

// Arguments of a message's calls that are no object become one: {} of nothing, {"arguments": TEXT} of any other text.
void mend_calls(json & message);

}  // namespace edgekv_server
