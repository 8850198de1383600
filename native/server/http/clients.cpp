#include "server/http/clients.h"

#include <cctype>

namespace edgekv_server {
namespace {

constexpr char HEADER[] = "x-anthropic-billing-header:";

// the place behind "name=value;" at i, or i: there is none. At the end of a line the semicolon may be missing.
size_t behind_pair(const std::string & text, size_t i) {
    size_t at = text.find_first_not_of(' ', i);
    const size_t name = at;
    while (at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) || text[at] == '_' || text[at] == '-')) {
        ++at;
    }
    if (at == name || at >= text.size() || text[at] != '=') {
        return i;
    }
    at = text.find_first_of("; \n", at);
    if (at == std::string::npos) {
        return text.size();
    }
    return text[at] == ' ' ? i : at + 1;
}

}  // namespace

void drop_billing_header(std::string & system_text) {
    if (system_text.rfind(HEADER, 0) != 0) {
        return;
    }
    size_t end = sizeof(HEADER) - 1;
    for (size_t next = behind_pair(system_text, end); next != end; next = behind_pair(system_text, next)) {
        end = next;
    }
    system_text.erase(0, system_text.find_first_not_of(" \r\n", end));
}

void drop_billing_headers(json & messages) {
    const auto drop = [](json & text) {
        if (text.is_string()) {
            std::string given = text.get<std::string>();
            drop_billing_header(given);
            text = given;
        }
    };
    for (auto & message : messages) {
        const std::string role = json_value(message, "role", std::string());
        if ((role != "system" && role != "developer") || !message.contains("content")) {
            continue;
        }
        json & content = message.at("content");
        drop(content);
        if (content.is_array()) {
            for (auto & part : content) {
                if (part.contains("text")) {
                    drop(part.at("text"));
                }
            }
        }
    }
}

void carry_over(const json & request, json & converted) {
    const json tools = request.value("tools", json::array());
    for (size_t i = 0; tools.is_array() && i < tools.size(); i++) {
        if (json_value(tools[i], "strict", false)) {
            converted["tools"][i]["function"]["strict"] = true;
        }
    }
    for (const char * name : { "cache_salt", "cache_prompt", "response_format", "continue_final_message", "add_generation_prompt", "reasoning_effort" }) {
        if (request.contains(name)) {
            converted[name] = request.at(name);
        }
    }
    if (!request.contains("tool_choice") || !request.at("tool_choice").is_object()) {
        return;
    }
    const json & choice = request.at("tool_choice");
    const auto   type   = json_value(choice, "type", std::string());
    if (type == "none") {
        converted["tool_choice"] = type;
    } else if (type == "tool") {
        converted["tool_choice"] = {{ "type", "function" }, { "name", json_value(choice, "name", std::string()) }};
    }
    if (json_value(choice, "disable_parallel_tool_use", false)) {
        converted["parallel_tool_calls"] = false;
    }
}

}  // namespace edgekv_server
