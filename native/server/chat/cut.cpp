#include "server/chat/cut.h"

#include "server/prefix_cache/prefixes.h"

namespace edgekv_server {
namespace {

constexpr const char * BLANKS = " \t\r\n";

bool is_json_object(const std::string & text) { return json::parse_no_throw(text).is_object(); }

bool is_blank(const std::string & text) { return text.find_first_not_of(BLANKS) == std::string::npos; }

bool is_cut(const json & item) {
    const std::string type = json_value(item, "type", std::string());
    return type == "message" || (type == "function_call" && !is_json_object(json_value(item, "arguments", std::string())));
}

}  // namespace

void tell_response(json & response, stop_type stop, const common_chat_msg & msg, int task) {
    tell_thinking(response, msg);
    response["usage"]["edgekv"]    = edgekv_usage_json(task);
    response["incomplete_details"] = nullptr;
    if (stop != STOP_TYPE_LIMIT) {
        return;
    }
    response["status"]             = "incomplete";
    response["incomplete_details"] = json {{ "reason", "max_output_tokens" }};
    json & output = response.at("output");
    if (!output.empty() && is_cut(output.at(output.size() - 1))) {
        output.at(output.size() - 1)["status"] = "incomplete";
    }
}

void tell_response(std::vector<json> & events, stop_type stop, const common_chat_msg & msg, int task) {
    json & last = events.back();
    tell_response(last.at("data").at("response"), stop, msg, task);
    if (stop != STOP_TYPE_LIMIT) {
        return;
    }
    last["event"] = last["data"]["type"] = "response.incomplete";
    for (auto event = events.rbegin(); event != events.rend(); ++event) {
        if (json_value(*event, "event", std::string()) == "response.output_item.done") {
            json & item = event->at("data").at("item");
            if (is_cut(item)) {
                item["status"] = "incomplete";
            }
            return;
        }
    }
}

void cut_call(common_chat_msg & msg, stop_type stop, json & blocks) {
    if (stop == STOP_TYPE_LIMIT && !msg.tool_calls.empty() && !is_json_object(msg.tool_calls.back().arguments)) {
        const auto & call = msg.tool_calls.back();
        blocks.push_back({{ "type", "text" }, { "text", call.name + " " + call.arguments }});
        msg.tool_calls.pop_back();
    }
}

void tell_thinking(json & part, const common_chat_msg & msg) {
    if (!is_blank(msg.reasoning_content) && is_blank(msg.content) && msg.tool_calls.empty()) {
        part["edgekv"] = json {{ "only_thinking", true }};
    }
}

void mend_calls(json & message) {
    if (!message.is_object() || !message.contains("tool_calls") || !message.at("tool_calls").is_array()) {
        return;
    }
    for (auto & call : message.at("tool_calls")) {
        if (!call.is_object() || !call.contains("function") || !call.at("function").is_object()) {
            continue;
        }
        json & function = call.at("function");
        if (!function.contains("arguments") || function.at("arguments").is_null()) {
            function["arguments"] = "{}";
        }
        const json &      given = function.at("arguments");
        const std::string text  = given.is_string() ? given.get<std::string>() : given.dump();
        if (is_blank(text) || text == "null") {
            function["arguments"] = "{}";
        } else if (!is_json_object(text)) {
            function["arguments"] = json {{ "arguments", text }}.dump();
        }
    }
}

}  // namespace edgekv_server
