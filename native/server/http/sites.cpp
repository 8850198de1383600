#include "server/http/sites.h"

#include "server/scheduling/limits.h"
#include "server/scheduling/requests.h"

#include <cpp-httplib/httplib.h>

#include <algorithm>
#include <cctype>
#include <iterator>

#include <arpa/inet.h>

namespace edgekv_sites {
namespace {

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

// the host of "name:port", "[::1]:port" or either without port, in lower case and without brackets; empty: the text has another form
std::string host_of(const std::string & authority) {
    const std::string text   = lower(authority);
    const bool        is_v6  = !text.empty() && text[0] == '[';
    const size_t      end    = is_v6 ? text.find(']') : std::min(text.find(':'), text.size());
    const size_t      behind = end == std::string::npos ? end : end + is_v6;
    if (end == std::string::npos || (behind < text.size() && text[behind] != ':') ||
        !std::all_of(text.begin() + std::min(behind + 1, text.size()), text.end(), [](unsigned char c) { return std::isdigit(c); })) {
        return {};
    }
    std::string host = text.substr(is_v6, end - is_v6);
    if (!is_v6 && host.size() > 1 && host.back() == '.') {
        host.pop_back();
    }
    return host;
}

// "http://name:port" -> "name:port"; empty for "null", a document without a site
std::string authority_of(const std::string & origin) {
    const size_t at = origin.find("://");
    return at == std::string::npos ? "" : lower(origin.substr(at + 3));
}

bool is_address(const std::string & host, bool & is_loopback) {
    unsigned char bytes[16];
    if (inet_pton(AF_INET, host.c_str(), bytes) == 1) {
        is_loopback = bytes[0] == 127;
        return true;
    }
    if (inet_pton(AF_INET6, host.c_str(), bytes) == 1) {
        is_loopback = std::all_of(bytes, bytes + 15, [](unsigned char b) { return b == 0; }) && bytes[15] == 1;
        return true;
    }
    return false;
}

bool is_local(const std::string & host) {
    bool is_loopback = false;
    return host == "localhost" || (is_address(host, is_loopback) && is_loopback);
}

// whether a host is named; compares IPv6 addresses, not their spelling
bool is_named(const std::string & host) {
    unsigned char wanted[16], named[16];
    const bool is_v6 = inet_pton(AF_INET6, host.c_str(), wanted) == 1;
    for (auto name = edgekv_server::current().hosts; *name; ++name) {
        if (host == *name || (is_v6 && inet_pton(AF_INET6, *name, named) == 1 && std::equal(wanted, wanted + 16, named))) {
            return true;
        }
    }
    return false;
}

bool is_ours(const std::string & host) {
    bool is_loopback = false;
    return is_local(host) || is_named(host) || (edgekv_server::current().any_address && is_address(host, is_loopback));
}

// Whether pages of a site may read answers: "https://name" names a site, "app://" the pages of all programs that have this scheme.
bool may_read(const std::string & origin, const std::string & origins) {
    const std::string wanted = lower(origins), given = lower(origin);
    const bool        scheme = wanted.size() > 3 && string_ends_with(wanted, "://");
    return wanted == "*" || given == wanted || (scheme && given.size() > wanted.size() && string_starts_with(given, wanted)) ||
           (wanted == "localhost" && is_local(host_of(authority_of(origin))));
}

// Whether a site may send requests that change something: the server's own site, one that may read answers, or a named host.
bool may_send(const std::string & origin, const std::string & own, const std::string & origins) {
    const std::string authority = authority_of(origin);
    return may_read(origin, origins) || (!authority.empty() && authority == lower(own)) || is_named(host_of(authority));
}

// Tells a browser what its page may do, in llama.cpp's place: it knows web addresses alone, and one answer for all pages would be kept for others.
void tell_pages(const httplib::Request & req, httplib::Response & res, const std::string & origins) {
    static const char * ALLOWED = "Access-Control-Allow-Origin";
    const std::string   origin  = req.get_header_value("Origin");
    res.set_header("Vary", "Origin");
    if (origins != "*") {
        res.headers.erase(ALLOWED);
        if (may_read(origin, origins)) {
            res.set_header(ALLOWED, origin);
        }
    }
    // a page of the internet asks whether it may reach a private network
    if (req.get_header_value("Access-Control-Request-Private-Network") == "true" && may_read(origin, origins)) {
        res.set_header("Access-Control-Allow-Private-Network", "true");
    }
}

std::string media_type(const httplib::Request & req) {
    std::string type = lower(req.get_header_value("Content-Type"));
    type.resize(std::min(type.find(';'), type.size()));
    type.erase(std::remove_if(type.begin(), type.end(), [](unsigned char c) { return std::isspace(c); }), type.end());
    return type;
}

bool is_empty(const httplib::Request & req) {
    return !req.has_header("Transfer-Encoding") && (!req.has_header("Content-Length") || req.get_header_value("Content-Length") == "0");
}

// Whether a browser asks before it sends a request of this type. Files come as forms; a request without a body has no type.
bool has_right_type(const httplib::Request & req) {
    const std::string type = media_type(req);
    if (type == "application/json" || (type.empty() && is_empty(req))) {
        return true;
    }
    return type == "multipart/form-data" && string_ends_with(req.path, "/audio/transcriptions");
}

// true: `res` is an answer
bool tell(const httplib::Request & req, httplib::Response & res, int status, const char * type, const std::string & sentence) {
    const bool is_messages = req.path.find("/v1/messages") != std::string::npos;
    json       error       = {{ "code", status }, { "message", sentence }, { "type", is_messages && status == 413 ? "request_too_large" : type }};
    json       body        = json::parse(edgekv_server::error_body(error));
    if (is_messages) {
        body["type"] = "error";
    }
    res.status = status;
    res.set_content(safe_json_to_str(body), "application/json; charset=utf-8");
    return true;
}

// the printable part of a client's text, for a sentence
std::string shown(const std::string & text) {
    std::string found = text.substr(0, 100);
    std::replace_if(found.begin(), found.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
    return "'" + found + "'";
}

// A sentence for a path that nothing serves. Clients put theirs behind a base URL, which people give with a slash or a /v1 too many.
std::string no_such_path(const std::string & path) {
    std::string meant;
    std::copy_if(path.begin(), path.end(), std::back_inserter(meant), [&](char c) { return c != '/' || meant.empty() || meant.back() != '/'; });
    while (meant.size() > 1 && meant.back() == '/') {
        meant.pop_back();
    }
    while (meant == "/v1/v1" || meant.compare(0, 7, "/v1/v1/") == 0) {
        meant.erase(0, 3);
    }
    static const std::string BASE = "the base URL of a client ends in /v1, once and without a slash behind it";
    if (meant == "/v1") {
        return "nothing is at " + shown(path) + " itself; " + BASE + ", and /v1/models lists the models";
    }
    return meant == path ? "File Not Found" : "there is no " + shown(path) + " here, ask for " + shown(meant) + "; " + BASE;
}

std::string too_large() {
    return "the request's body is too large; " + std::to_string(edgekv_server::current().max_body >> 20) + " MiB are taken at most with this context";
}

std::string why(const httplib::Request & req, int status) {
    switch (status) {
        case 400: return "the request cannot be read: its first line, a header, or the length of its body is wrong";
        case 404: return no_such_path(req.path);
        case 413: return too_large();
        case 415: return "the request's Content-Encoding is " + shown(req.get_header_value("Content-Encoding")) + "; send its body as it is";
        default:  return httplib::status_message(status);
    }
}

void explain(const httplib::Request & req, httplib::Response & res) {
    if (res.body.empty() && !res.content_provider_) {
        tell(req, res, res.status, res.status == 404 ? "not_found_error" : res.status < 500 ? "invalid_request_error" : "server_error", why(req, res.status));
    }
}

}  // namespace

void explain_errors(httplib::Server & server) {
    if (edgekv_server::current().hosts) {
        server.set_error_handler(explain);
        server.set_payload_max_length(static_cast<size_t>(edgekv_server::current().max_body));  // of a body without a length
        server.set_default_headers({ { "Server", "EdgeKV" } });
        // a browser at the address itself finds a page; the first handler serves, so llama.cpp's chat where it is built
        server.Get("/", [](const httplib::Request &, httplib::Response & res) { res.set_redirect("/edgekv"); });
    }
}

bool refuses(const httplib::Request & req, httplib::Response & res, const std::string & origins) {
    if (!edgekv_server::current().hosts) {
        return false;
    }
    tell_pages(req, res, origins);
    const std::string host = req.get_header_value("Host");
    // a health check may name no host; a browser always does
    if (req.has_header("Host") && !is_ours(host_of(host))) {
        return tell(req, res, 403, "permission_error", "this server does not answer to the name " + shown(host) +
                      "; if the name is its own, start it with --allow-host");
    }
    // a browser's question is answered as what it asks for would be
    const bool asks = req.method == "OPTIONS" && req.has_header("Access-Control-Request-Method");
    if (req.method == "GET" || req.method == "HEAD" || (req.method == "OPTIONS" && !asks)) {
        return false;
    }
    if (req.get_header_value_u64("Content-Length") > static_cast<uint64_t>(edgekv_server::current().max_body)) {
        res.set_header("Connection", "close");  // the body is not read
        return tell(req, res, 413, "invalid_request_error", too_large());
    }
    const std::string origin = req.get_header_value("Origin");
    if (req.has_header("Origin") && !may_send(origin, host, origins)) {
        return tell(req, res, 403, "permission_error", "pages of " + shown(origin) + " may not use this server; to allow them, start it with "
                      "--cors");
    }
    if (req.method == "POST" && !has_right_type(req)) {
        return tell(req, res, 415, "invalid_request_error", "the request's Content-Type is " + shown(req.get_header_value("Content-Type")) +
                      "; send JSON, with the header Content-Type: application/json");
    }
    return false;
}

}  // namespace edgekv_sites
