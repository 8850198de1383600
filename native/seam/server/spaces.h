// Namespaces: prefixes are matched and kept within one only. Each API key has a namespace of its own, and a client may part it by the field
// prompt_cache_key. The patches call this from threads that answer requests.
#pragma once

#include "server-common.h"

#include <map>
#include <string>

namespace edgekv_server {

using headers = std::map<std::string, std::string>;

// Before a server starts: sets the namespace of each key. Without keys all requests are in the namespace without a name.
void set_spaces(std::map<std::string, std::string> by_key);

// The namespace of a request that was let in. Throws std::invalid_argument where prompt_cache_key is no text.
std::string space_of(const headers & given, const json & body);

// the file of a saved slot; each key has files of its own
std::string slot_file(const std::string & path, const headers & given);

// the server's name of an answer that is kept for a client that comes back, and the client's
std::string stream_of(const std::string & name, const headers & given);
std::string stream_name(const std::string & stream, const headers & given);

}  // namespace edgekv_server
