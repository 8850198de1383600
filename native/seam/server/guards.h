// Bounds on the nesting and the names of a request: for the patch `server-guards`.
#pragma once

#include <string>

namespace edgekv_guards {

// Throws std::invalid_argument for a JSON body that nests deeper, or has longer names, than any sensible request. Upstream walks JSON, all
// data built from it, and names in schemas by recursion, and a stack overflow ends the process. A body that is not JSON passes.
void check_body(const std::string & body);

}  // namespace edgekv_guards
