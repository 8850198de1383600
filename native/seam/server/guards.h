// Bounds on the nesting of a request: for the patch `server-guards`.
#pragma once

#include <string>

namespace edgekv_guards {

// Throws std::invalid_argument for a JSON body that nests deeper than anybody means it to: upstream walks JSON, and all that it builds from it,
// by recursion, and a stack that overflows ends the process. Bodies that are no JSON pass.
void check_body(const std::string & body);

}  // namespace edgekv_guards
