// Which words of a JSON schema the grammar that upstream makes of it enforces. Threads of requests.
#pragma once

#include "server-common.h"

#include <string>

namespace edgekv_server {

// Throws std::invalid_argument, which names the first word that would have no effect and its place, for a schema of the request's field `field`.
// A word that no value of the schema's type can violate has none to have; words that JSON Schema does not know, and those that describe, are passed.
void check_schema(const json & schema, const std::string & field);

}  // namespace edgekv_server
