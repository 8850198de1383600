// Answers that the parser of the chat template cannot read, wholly or from some character on: the rest comes as content.
#pragma once

#include "server-common.h"

#include <exception>
#include <string>
#include <vector>

struct common_chat_msg;
struct common_chat_msg_diff;
struct common_chat_parser_params;
struct server_task_result_cmpl_final;
struct task_result_state;

namespace edgekv_server {

// What was sent (`sent`) stays in `read`, where a mark that has just ended takes the characters before it back.
void keep_sent(const common_chat_msg & sent, common_chat_msg & read);

// The last characters of an answer that began like a mark, and were held back, belong to what they followed. An answer of which nothing was read
// or sent is content, in streams as without.
void add_held(const common_chat_parser_params & params, const std::string & text, const common_chat_msg & sent, common_chat_msg & read);

// After `e`: the state's message becomes `sent`, then what can be read of the text, and the rest of it as content. Nothing changes before the
// last piece of a text (`is_partial`), so that no answer is given up too early.
void take_rest(task_result_state & state, const common_chat_msg & sent, bool is_partial, const std::exception & e,
               std::vector<common_chat_msg_diff> & diffs);

// Streams of the dialects whose last result brings no text: `result` gets the events of its differences.
void tell_rest(server_task_result_cmpl_final & result, const task_result_state & state);

// Appends them, a list or nothing, to those of either dialect.
template <typename Events>
void add_events(Events & events, const json & told) {
    for (const auto & event : told) {
        events.push_back(event);
    }
}

}  // namespace edgekv_server
