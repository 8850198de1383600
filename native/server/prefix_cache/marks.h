// Marks in requests: the prompt's first tokens, up to the end of a marked part, stay for a time. Anthropic's cache_control and OpenAI's
// prompt_cache_breakpoint mark parts; prompt_cache_retention and prompt_cache_options mark the whole prompt.
//
// Only the template knows where a part ends in the prompt. So a text that no client can guess is put at the end of each marked part before the
// template is applied, and is taken out of the prompt afterwards: the prompt is the same as without marks. Threads of requests.
//
// Over HTTP a client lists, changes and removes the prompts of its key that stay.
#pragma once

#include "edgekv_server.h"
#include "server-common.h"
#include "server-http.h"

#include <string>
#include <vector>

namespace edgekv_server {

// Puts the texts into a request of any dialect; whether there are any. Throws std::invalid_argument if a mark is none or its part is empty, or if there
// are more than four of Anthropic's; of OpenAI's the last four count.
bool sign_marks(json & request);

// Takes the texts out of the prompt that a chat became. "edgekv_marks" then lists, for each, a number of the prompt's bytes and seconds.
void take_marks(json & converted);

// Notes a task's marks until it is posted. Throws std::invalid_argument if a field that marks the whole prompt has no such value.
void mark_prompt(int task, const server_tokens & tokens, const json & converted, const llama_vocab * vocab);

// Anthropic's counts of a task's prompt: those of tokens that now stay and were not kept before are taken out of input_tokens.
void add_cache_usage(json & usage, int task);

// What answers requests of a method about prompts that stay: GET, POST or DELETE. It asks the program around the server, and waits.
server_http_context::handler_t kept_prompts(const char * method);

}  // namespace edgekv_server
