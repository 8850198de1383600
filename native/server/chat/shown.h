// Whether a chat template put every text of a conversation into the prompt.
#pragma once

#include "chat.h"

#include <string>
#include <vector>

namespace edgekv_server {

constexpr size_t ALL_SHOWN = static_cast<size_t>(-1);

// The first message that is not found in `prompt` behind the ones before it: a part of its text, or a call with the texts among its arguments. ALL_SHOWN if
// there is none. White space at a text's ends does not count, nor thinking, which templates keep or leave as the model was taught: `thinking_ends` are
// its closing marks. A message that is not found may still be there, in another place or spelled otherwise: marked() tells.
size_t first_not_found(const std::vector<common_chat_msg> & messages, const std::string & prompt, const std::vector<std::string> & thinking_ends);

// The messages with a word of its own behind each text, and among the arguments of each call.
std::vector<common_chat_msg> marked(std::vector<common_chat_msg> messages);

// The first of marked messages that has a word which `prompt`, made of them, lacks. ALL_SHOWN if there is none.
size_t first_not_shown(const std::vector<common_chat_msg> & marked, const std::string & prompt);

}  // namespace edgekv_server
