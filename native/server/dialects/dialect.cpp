#include "server/dialects/dialect.h"

#include <algorithm>

namespace edgekv_server {

std::string text_in(const json & object, const char * name) { return json_value(object, name, std::string()); }

std::string told_events(const std::string & text, dialect & by) {
    static const std::string END = "\n\n", DATA = "data: ";
    std::string told;
    for (size_t at = 0; at < text.size();) {
        const size_t      end  = std::min(text.find(END, at), text.size());
        const std::string one  = text.substr(at, end - at);
        const size_t      data = one.compare(0, DATA.size(), DATA) == 0 ? 0 : one.find("\n" + DATA);
        at = end + END.size();
        json event = data == std::string::npos ? json() : json::parse_no_throw(one.substr(one.find(DATA, data) + DATA.size()));
        std::vector<json> events;
        const bool is_event = event.is_object();
        if (is_event && event.contains("error") && !event.contains("type")) {
            by.tell_error(event);  // a stream that fails
            events.push_back(std::move(event));
        } else if (is_event) {
            events = by.tell_event(std::move(event));
        } else if (one == DATA + "[DONE]") {
            events = by.tell_end();
        }
        for (const auto & each : events) {
            const std::string name = json_value(each, "type", std::string());
            told += (name.empty() ? "" : "event: " + name + "\n") + DATA + safe_json_to_str(each) + END;
        }
        told += is_event ? "" : one + END;
    }
    return told;
}

}  // namespace edgekv_server
