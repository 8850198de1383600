// Limits a request's cost to other requests, and ends a server without leaving clients waiting. The patches call it from many threads.
#pragma once

#include "edgekv_server.h"

#include <cstdint>
#include <string>

namespace edgekv_server {

// call it before a server starts; it forgets an earlier server
void begin(const edgekv_server_settings & settings);

const edgekv_server_settings & current();

// No answers come any more: requests are refused, and readers tell their clients so.
bool stopping();

// The server stops. Waits until every waiting client has been told, a few seconds at most.
void end_answers();

constexpr const char * STOPPING = "the server is stopping";

// Takes a place for a request, running or waiting, until its answer has been sent; `reader` reads its answers. Returns an empty
// text, or the sentence that refuses the request: no place is free, or the server is stopping.
std::string take_place(const void * reader);
void leave_place(const void * reader);

// seconds after which asking again may help
int retry_after_s();

// n_requests and n_refused
void count_requests(edgekv_server_pacing & to);

}  // namespace edgekv_server
