// Namespaces: prefixes are matched and kept only within one. Each API key has a namespace of its own, and a client may divide it with the
// field cache_salt, as vLLM names it. OpenAI's prompt_cache_key divides nothing: clients send a new one with each conversation, as a hint for a
// cluster that must choose a machine. The patches call this from threads that answer requests.
#pragma once

#include "server-common.h"

#include <map>
#include <string>

namespace edgekv_server {

using headers = std::map<std::string, std::string>;

// The namespace of an admitted request. Throws std::invalid_argument if cache_salt is not a text.
std::string space_of(const headers & given, const json & body);

// the server's name of an answer kept for a returning client, from the client's name
std::string stream_of(const std::string & name, const headers & given);
std::string stream_name(const std::string & stream, const headers & given);

}  // namespace edgekv_server
