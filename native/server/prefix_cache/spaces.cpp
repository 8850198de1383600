#include "server/prefix_cache/spaces.h"

#include "server/scheduling/limits.h"

#include <algorithm>
#include <stdexcept>
#include <strings.h>

namespace edgekv_server {
namespace {

constexpr const char * UNKNOWN = "unknown";  // the namespace of any other key

std::string value_of(const headers & given, const char * name) {
    const auto found = std::find_if(given.begin(), given.end(), [&](const auto & header) { return strcasecmp(header.first.c_str(), name) == 0; });
    return found == given.end() ? std::string() : found->second;
}

// finds the key as the middleware does that admitted the request
std::string key_of(const headers & given) {
    std::string       key    = value_of(given, "Authorization");
    const std::string bearer = "Bearer ";
    if (key.empty()) {
        key = value_of(given, "X-Api-Key");
    }
    return key.compare(0, bearer.size(), bearer) == 0 ? key.substr(bearer.size()) : key;
}

std::string key_space(const headers & given) {
    const char * const * at = current().spaces;
    if (!at || !*at) {
        return {};
    }
    for (const std::string key = key_of(given); *at; at += 2) {
        if (key == *at) {
            return at[1];
        }
    }
    return UNKNOWN;
}

}  // namespace

std::string space_of(const headers & given, const json & body) {
    const std::string space = key_space(given);
    if (!body.contains("cache_salt") || body.at("cache_salt").is_null()) {
        return space;
    }
    if (!body.at("cache_salt").is_string()) {
        throw std::invalid_argument("the field 'cache_salt' must be a string");
    }
    const std::string part = body.at("cache_salt").get<std::string>();
    return part.empty() ? space : space + "/" + part;
}

std::string stream_of(const std::string & name, const headers & given) {
    const std::string space = key_space(given);
    return space.empty() ? name : space + "/" + name;
}

std::string stream_name(const std::string & stream, const headers & given) { return stream.substr(stream_of("", given).size()); }

}  // namespace edgekv_server
