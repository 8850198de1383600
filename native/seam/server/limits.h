// What one request may cost the others, and what a server owes those that wait when it stops. The patches call it, from many threads.
#pragma once

#include <cstdint>
#include <string>

namespace edgekv_server {

struct limits {
    double  max_gap_s = 0;  // 0: prompts are read at full speed
    int32_t n_slots   = 1;
    int32_t max_queue = -1;  // requests that wait for a slot; below 0: any number
};

// before a server starts; forgets the one before
void begin(const limits & l);

const limits & current();

// whether the server runs inside a program that called begin(): signals are that program's
bool embedded();

// no answer comes any more: requests are refused, readers tell theirs
bool stopping();

// the server stops: waits, for a few seconds at most, until everybody who waits for an answer has been told
void end_answers();

constexpr const char * STOPPING = "the server is stopping";

// A request takes a place among those that are answered or wait, until its answer has been sent; `reader` reads its answers. Empty: it has
// one. Else the sentence that refuses it: there is no place, or the server is stopping.
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
