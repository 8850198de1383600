// Finds where the user messages of a prompt begin.
#pragma once

#include "server-common.h"

struct llama_vocab;

namespace edgekv_server {

// whether a message of a request is a user's
bool of_user(const json & message);

// The spans of a prompt's messages: upstream's, or only those between user messages if upstream did not find each of these (it takes a
// template's default system prompt for part of a user message). body: the request. Threads of requests call it.
common_chat_msg_spans message_spans(const common_chat_msg_spans & found, const server_tokens & tokens, const json & body,
                                    const server_chat_params & chat, const llama_vocab * vocab);

}  // namespace edgekv_server
