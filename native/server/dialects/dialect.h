// What an API has that upstream's has not: its requests as upstream's conversion knows them, and its answers as its clients know them.
#pragma once

#include "server/http/fields.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace edgekv_server {

// a text of an object; empty: there is none
std::string text_in(const json & object, const char * name);

// One for each request. Threads of requests.
class dialect {
public:
    virtual ~dialect() = default;

    // Brings a request into the form that upstream's conversion reads whole. Throws std::invalid_argument for what cannot be done.
    virtual void take(json & request) = 0;

    // A whole answer with status 200.
    virtual void tell(json & answer) = 0;

    // The body of an error.
    virtual void tell_error(json &) {}

    // The events that stand for one of upstream's, in order; "type" is an event's name, if it has one.
    virtual std::vector<json> tell_event(json event) { return { std::move(event) }; }

    // The events before the end of a stream that says where it ends.
    virtual std::vector<json> tell_end() { return {}; }
};

std::unique_ptr<dialect> make_messages();
std::unique_ptr<dialect> make_responses();
std::unique_ptr<dialect> make_openai(bool chat);
std::unique_ptr<dialect> make_lists(bool ranks);

// Rewrites events of a stream, all of whose text comes in whole events; comments stay.
std::string told_events(const std::string & text, dialect & by);

}  // namespace edgekv_server
