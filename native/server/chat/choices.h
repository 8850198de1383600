// Which of its tools a request lets the model call. Threads of requests.
#pragma once

#include "chat.h"
#include "server-common.h"

#include <map>
#include <string>
#include <vector>

namespace edgekv_server {

struct tool_choice {
    std::vector<std::string> names;  // empty: all
    bool single = false;  // one call at most
    std::vector<std::string> strict;  // tools whose calls have arguments by their schemas, or are refused
};

// Whether the model may call a tool.
bool may_call(const common_chat_templates_inputs & inputs);

// Grammar and parser of a request, without its history where the template lets it; the prompt is none.
common_chat_params of_answer(const common_chat_templates * templates, common_chat_templates_inputs inputs, const std::string & prompt_end);

// Reads the object that 'tool_choice' may be, in the form of each dialect, and leaves "auto", "none" or "required" in its place. Throws
// std::invalid_argument for a function that is not among 'tools', for what cannot be asked, and for a call that is asked of a chat template
// (`caps`: its abilities) that knows no tools.
tool_choice take_tool_choice(json & body, const std::map<std::string, bool> & caps);

// Narrows what the model may say, and the tools in `inputs`, to the chosen ones; a schema beside tools is left to shape_answer(). The prompt still
// describes all tools, so that it begins as the conversation's others do.
void narrow(common_chat_params & params, const tool_choice & choice, common_chat_templates_inputs & inputs, const common_chat_templates * templates);

}  // namespace edgekv_server
