// Adds figures of the KV hierarchy to the server's answers; the patches call it. The figures are those published last
// (edgekv_server_publish()); without any, an answer stays as it is. Threads that answer requests copy the latest text, so no request waits for the
// decoding thread or for Python.
#pragma once

#include "server-common.h"
#include "server-http.h"

#include <string>

namespace edgekv_documents {

// the document published under the request's path, or 404. The header X-EdgeKV-Busy says whether the server computes now (1 or 0), which
// the document may not know yet
server_http_res_ptr serve(const server_http_req & req);

// adds `edgekv` to an object, from the document "props"
void add_to_props(json & props);

// adds `edgekv` to each element of an array of slots, from the document "slots": an array with one element per slot, by number
void add_to_slots(json & slots);

// appends the document "metrics" to a text in Prometheus' format
void add_to_metrics(std::string & text);

// Lets the publisher update its texts, on the decoding thread between two batches. idle: nothing is left to do. is_yielding: that thread decodes
// meanwhile, and the latest texts must do.
void refresh(bool idle, bool is_yielding = false);

// Says that there is work from now on, until refresh(true). Decoding thread.
void set_busy();

}  // namespace edgekv_documents
