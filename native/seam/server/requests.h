// What the patches ask about a request: fields that cannot be served, the key it carries, whose fault an exception is, and how an error
// is told to clients of both dialects.
#pragma once

#include "server-common.h"
#include "server-http.h"
#include "server-task.h"

#include <exception>
#include <map>
#include <string>
#include <vector>

namespace edgekv_server {

enum class endpoint { chat, completions, responses, messages };

// std::invalid_argument for a field that is known, asks for something, and has no effect here
void check_fields(const json & body, endpoint where);

// the same for a tool call that must come, where the chat template (`caps`, what it can) would not tell the model of any tool
void check_tools(const json & body, const std::map<std::string, bool> & caps);

// `given` where it is one of the keys, else an empty string; takes as long for a wrong key as for a right one of its length
std::string checked_key(const std::vector<std::string> & keys, const std::string & given);

// Whether a request finds no place: `res` is then its answer. Else it has one until request_ends(); `reader` reads its answers.
bool refuses(const void * reader, server_http_res & res);

// the answer of a server that stops, which nobody computes any more
server_task_result_ptr stopping_answer();

// of an exception on the way from a request to a task: what could not be read is the client's fault
error_type fault(const std::exception & e);

// the body of an error response: as llama.cpp's clients know it, and with OpenAI's code where that has one
std::string error_body(const json & error);

}  // namespace edgekv_server
