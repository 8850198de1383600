// Each task's time of posting, the source of its cached tokens, and what its request asks for, by the task's number, until its request ends. Any thread.
#pragma once

#include "edgekv_server.h"
#include "server/prefix_cache/misses.h"
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
    int64_t posted_us = -1;
    edgekv_cached_tokens cached = {};
    found_prefix found;
    prompt_marks marks;
    rolled_conversation rolled;
};

// the tasks of a request are about to be posted
void tasks_posted(const std::unordered_set<int> & ids);

// A request ends: its place is free, and its tasks are forgotten. `reader` reads its answers.
void request_ends(const void * reader, const std::unordered_set<int> & ids);

// when a task was posted; below 0: its request has ended
int64_t posted_us(int id);

// the tokens of a task's prompt that need not be computed; zeros: its request has ended
void set_cached(int id, const edgekv_cached_tokens & cached);
edgekv_cached_tokens cached_of(int id);

// what was found of a task's prompt
void set_found(int id, const found_prefix & found);
found_prefix found_of(int id);

// The marks, and the conversation, of a task that this thread is about to post; they are the task's once it is posted. Those of a task that is never
// posted are forgotten.
void note_marks(int id, prompt_marks marks);
void note_rolled(int id, rolled_conversation rolled);

// none: it has none, or its request has ended
prompt_marks marks_of(int id);

}  // namespace edgekv_server
