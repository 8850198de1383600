// Whose tokens a request's are: prefixes are matched and kept within a namespace only. Each API key has one of its own, and a client may
// part it by the field prompt_cache_key. The patches call it from threads that answer requests.
#pragma once

#include "server-common.h"

#include <map>
#include <string>

namespace edgekv_server {

using headers = std::map<std::string, std::string>;

// before a server starts: the namespace of each key; none: all requests are in the one without a name
void set_spaces(std::map<std::string, std::string> by_key);

// of a request that was let in; std::invalid_argument where prompt_cache_key is no text
std::string space_of(const headers & given, const json & body);

// where a slot is saved under a name: files of another key are other files
std::string slot_file(const std::string & path, const headers & given);

// the name of an answer that is kept for a client that comes back, and what its client calls it
std::string stream_of(const std::string & name, const headers & given);
std::string stream_name(const std::string & stream, const headers & given);

}  // namespace edgekv_server
