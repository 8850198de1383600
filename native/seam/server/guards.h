#pragma once

#include <exception>
#include <string>

// What a request may hold, and whose fault it is where one cannot be answered: for the patch `server-guards`.
namespace edgekv_guards {

// Throws std::invalid_argument for a JSON body that nests deeper than anybody means it to: upstream walks JSON, and what it makes of it, by
// recursion, and a stack that overflows ends the process. Bodies that are no JSON pass.
void check_body(const std::string & body);

// Whether an exception of a handler says that the request was wrong, and not the server.
bool is_clients_fault(const std::exception & error);

} // namespace edgekv_guards
