// Limits: the cost of one request to the others, and the end of a server for those that wait. The patches call this from many threads.
#pragma once

#include <cstdint>
#include <string>

namespace edgekv_server {

struct limits {
    double  max_gap_s = 0;  // 0: prompts are read at full speed
    int32_t n_slots   = 1;
    int32_t max_queue = -1;  // requests that wait for a slot; below 0: any number
};

// before a server starts; the one before is forgotten
void begin(const limits & l);

const limits & current();

// whether the server runs inside a program that called begin(), which then handles signals
bool embedded();

// No answer comes any more: requests are refused, and readers tell their clients.
bool stopping();

// The server stops. Waits a few seconds at most, until every client that waits for an answer has been told.
void end_answers();

constexpr const char * STOPPING = "the server is stopping";

// Takes a place for a request among those that are answered or wait, until its answer has been sent; `reader` reads its answers. Returns an empty
// text, or the sentence that refuses the request: there is no place, or the server is stopping.
std::string take_place(const void * reader);
void leave_place(const void * reader);

// seconds after which asking again may help
int retry_after_s();

struct traffic {
    int32_t  n_requests = 0;  // answered or waiting now
    uint64_t n_refused  = 0;  // since the start
};

traffic current_traffic();

}  // namespace edgekv_server
