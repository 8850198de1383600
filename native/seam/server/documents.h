// Puts figures of the KV hierarchy into the server's answers, where the patches call it. The figures are the last published ones (published.h);
// without any, an answer stays as it is.
#pragma once

#include "server-common.h"
#include "server-http.h"

#include <string>

namespace edgekv_documents {

// the document that was published under the request's path; 404 where there is none. A header X-EdgeKV-Busy says whether anything is
// computed now (1 or 0), which the document may not know yet
server_http_res_ptr serve(const server_http_req & req);

// `edgekv` in an object, from the document "props"
void add_to_props(json & props);

// `edgekv` in each element of an array of slots, from the document "slots": an array with one element for each slot, by its number
void add_to_slots(json & slots);

// the document "metrics" behind a text in Prometheus' format
void add_to_metrics(std::string & text);

// On the thread that decodes, between two batches: lets the publisher publish anew. idle: nothing is left to do.
void refresh(bool idle);

// On the thread that decodes: there is work from now on, until refresh(true).
void set_busy();

}  // namespace edgekv_documents
