// Each task's time of posting, the source of its cached tokens, and what its request asks for, by the task's number, until its request ends. Any thread.
#pragma once

#include "edgekv_server.h"
#include "server/prefix_cache/rolling.h"

#include <cstdint>
#include <unordered_set>
#include <vector>

namespace edgekv_server {

// what a request asks of the store
struct prompt_marks {
    std::vector<edgekv_mark> marks;  // in order
    bool in_memory = false;  // nothing of it is written to disk or sent to a server
};

struct known_task {
    int64_t posted_us = -1;  // below 0: it was not posted
    edgekv_cached_tokens cached = {};  // tokens of its prompt that need not be computed
    edgekv_server_request found = {};  // of its prompt, for its reply
    prompt_marks marks;
    rolled_conversation rolled;
};

// the tasks of a request are about to be posted
void tasks_posted(const std::unordered_set<int> & ids);

// A request ends: its place is free, and its tasks are forgotten. `reader` reads its answers.
void request_ends(const void * reader, const std::unordered_set<int> & ids);

// what is known of a task; nothing: its request has ended
known_task known_of(int id);

// A task whose request has ended stays unknown.
void set_cached(int id, const edgekv_cached_tokens & cached);
void set_found(int id, const edgekv_server_request & found);

// What this thread knows of a task that it is about to post. Of a task that is never posted it is forgotten.
known_task & note_of(int id);

}  // namespace edgekv_server
