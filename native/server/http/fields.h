// The contract of each endpoint's fields: what is done, what is refused, and what has no effect here. Threads of requests.
#pragma once

#include "server-common.h"
#include "server-http.h"

#include <string>

namespace edgekv_server {

enum class endpoint : char { chat = 'c', completions = 'l', responses = 'r', messages = 'm', embeddings = 'e', rerank = 'k' };

enum class fate { done, refused, said };

struct field_row {
    const char * where;    // letters of endpoints
    const char * name;     // "outer.inner": a field of an object
    fate         what;
    const char * allowed;  // the values, in words that the check reads; empty: any
    const char * note;     // refused: what to do; said: why it has no effect
};

// Throws std::invalid_argument: HTTP 400 with this sentence.
[[noreturn]] void decline(const std::string & sentence);

// Whether a value asks for something: null, false, "", [] and {} do not.
bool asks(const json & value);

// Throws std::invalid_argument, which names the field and what is allowed, for a value of a wrong kind or range and for a field that is not served.
// Fields without an effect are told; on a strict server those that no row knows are refused.
void check_fields(const json & body, endpoint where);

// A field of this thread's request that the model's template gives no effect.
void has_no_effect(const std::string & name);

// The fields of this thread's request that have no effect, in the reply's header X-EdgeKV-Ignored.
void tell_ignored(server_http_res & res);

}  // namespace edgekv_server
