// Several answers to one prompt, `n` of a request: as many at once as there are slots, then each from the first slot that is free.
#pragma once

#include "server-queue.h"
#include "server-task.h"

#include <vector>

namespace edgekv_server {

constexpr int kMostAnswers = 128;  // of a request

// The answers that begin together with `task`, which all wait until there are slots for them.
int n_children(const server_task & task);

// The tasks of the answers that are neither `task` nor its children. Each has a seed of its own if the request gives one.
std::vector<server_task> later_answers(server_task & task, server_response_reader & reader);

// The first answer's usage becomes that of all. `answers`: `n` of the request to its first prompt, then as many to the second, and so on.
void add_usage(json & answers, const json & request);

}  // namespace edgekv_server
