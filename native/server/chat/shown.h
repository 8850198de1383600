// Whether a chat template put every text of a conversation into the prompt.
#pragma once

#include "chat.h"

#include <string>
#include <vector>

namespace edgekv_server {

constexpr size_t ALL_SHOWN = static_cast<size_t>(-1);

// The first message that `prompt` lacks: a part of its text, or a call with its arguments. ALL_SHOWN if there is none. White space at a text's ends
// does not count, nor thinking, which templates keep or leave as the model was taught: `thinking_ends` are its closing marks. A text that the template writes in a form of its own (JSON,
// or with words taken out) is known by its longest plain piece.
size_t first_not_shown(const std::vector<common_chat_msg> & messages, const std::string & prompt, const std::vector<std::string> & thinking_ends);

// Whether a text of the message is known by the words around it, as one so short might be a part of one of the template's.
bool has_short_text(const common_chat_msg & message);

}  // namespace edgekv_server
