// The form that a request orders for its answer, in the words of each API, as upstream's conversions know it. Threads of requests.
#pragma once

#include "server/http/fields.h"

namespace edgekv_server {

// Brings chat's `response_format`, responses' `text.format`, messages' `output_config.format` and completions' `response_format` into the field that the
// endpoint's conversion reads. Throws std::invalid_argument for a form that is none, and for a schema that cannot be enforced.
void take_form(json & request, endpoint where);

}  // namespace edgekv_server
