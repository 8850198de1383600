// Checks of a request: the key, a place in the queue, its task, and the side at fault for an exception. Also errors in the form that
// clients of both dialects read.
#pragma once

#include "server-common.h"
#include "server-http.h"
#include "server-task.h"

#include <exception>
#include <map>
#include <string>
#include <vector>

namespace edgekv_server {

// `given` if it is one of the keys, else an empty string. A wrong key takes as long as a right one of its length.
std::string checked_key(const std::vector<std::string> & keys, const std::string & given);

// Whether a request finds no place; `res` is then its answer. Otherwise it holds a place until request_ends(). `reader` reads its answers.
bool refuses(const void * reader, server_http_res & res);

// A completion has its tokens and its parameters, and is about to be posted. Finds where users' messages begin, lets the oldest exchanges leave a full
// context of `n_ctx` tokens, and notes what stays for a time. body: the request. Throws std::invalid_argument for a prompt that ends with a medium, for
// an adapter of which there is none, and for fields that are none.
void take_task(server_task & task, const json & body, const server_chat_params & chat, int n_ctx, size_t n_adapters, const llama_vocab * vocab);

// the answer to clients that wait when the server stops
server_task_result_ptr stopping_answer();

// The error type of an exception between a request and its task: an unreadable request is the client's fault.
error_type fault(const std::exception & e);

// Says that a prompt is too long as clients of the dialect know it, and names our option. Any other result stays as it is.
void say_too_long(server_task_result & result, task_response_type dialect);

// a sentence without the words of the library that reads JSON
std::string plain(std::string sentence);

// the body of an error response as llama.cpp's clients know it, with OpenAI's code if there is one
std::string error_body(const json & error);

// makes `res` an error's answer
void answer_error(server_http_res & res, const std::string & sentence, error_type type);

}  // namespace edgekv_server
