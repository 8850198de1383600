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
        if (!event.is_object()) {
            told += one + END;
            continue;
        }
        if (!event.contains("type")) {
            by.tell_error(event);  // a stream that fails
        }
        for (const auto & each : event.contains("type") ? by.tell_event(std::move(event)) : std::vector<json>{ std::move(event) }) {
            const std::string name = json_value(each, "type", std::string());
            told += (name.empty() ? "" : "event: " + name + "\n") + DATA + safe_json_to_str(each) + END;
        }
    }
    return told;
}

}  // namespace edgekv_server
