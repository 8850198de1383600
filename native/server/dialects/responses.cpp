// OpenAI's newer API: /v1/responses.
#include "server/dialects/dialect.h"

#include <ctime>
#include <map>
#include <utility>

namespace edgekv_server {
namespace {

// Parts of a message, or of a tool's output, under the names that upstream's conversion knows them by.
void take_parts(json & parts, bool of_assistant) {
    for (auto & part : parts) {
        const std::string type = text_in(part, "type");
        if (type == "refusal") {
            part = {{ "type", "output_text" }, { "text", text_in(part, "refusal") }};
        } else if (type == "output_text" || type == "input_text" || type == "text") {
            part["type"] = of_assistant ? "output_text" : "input_text";
        }
    }
}

// what was thought: the text, or else its summary
std::string thought(const json & item) {
    std::string text;
    for (const char * list : { "content", "summary" }) {
        for (const auto & part : text.empty() && item.value(list, json()).is_array() ? item.at(list) : json::array()) {
            text += (text.empty() ? "" : "\n") + text_in(part, "text");
        }
    }
    return text;
}

// An item of a conversation as upstream's conversion reads it; null: it says nothing that can be read here.
json taken(json item) {
    const std::string type = text_in(item, "type"), role = text_in(item, "role");
    if (!role.empty() && (type.empty() || type == "message")) {
        item["type"] = "message";
        if (item.value("content", json()).is_array()) {
            take_parts(item["content"], role == "assistant");
        }
    } else if (type == "reasoning") {
        const std::string text = thought(item);
        if (text.empty()) {
            return json();  // encrypted, for another server
        }
        item["summary"] = json::array();
        item["content"] = json::array();
        item["content"].push_back({{ "type", "reasoning_text" }, { "text", text }});
    } else if (type == "function_call_output" || type == "custom_tool_call_output") {
        item["type"] = "function_call_output";
        if (item.value("output", json()).is_array()) {
            take_parts(item["output"], false);
        }
    } else if (type == "custom_tool_call") {
        item["type"]      = "function_call";
        item["arguments"] = json {{ "input", text_in(item, "input") }}.dump();
    } else if (type == "item_reference") {
        decline("the field 'input' refers to an item, and none is kept here; send the item itself");
    } else if (type != "function_call") {
        decline("the field 'input' has an item of the type '" + type + "', which is not supported");
    }
    return item;
}

class responses : public dialect {
public:
    void take(json & request) override {
        for (const auto & wanted : request.value("include", json::array())) {
            if (wanted == "message.output_text.logprobs") {
                decline("the field 'include' asks for 'message.output_text.logprobs'; /v1/chat/completions has log-probabilities");
            }
        }
        if (request.value("input", json()).is_array()) {
            json items = json::array();
            for (const auto & item : request.at("input")) {
                json one = taken(item);
                if (!one.is_null()) {
                    items.push_back(std::move(one));
                }
            }
            request["input"] = std::move(items);
        }
        for (const char * name : { "instructions", "max_output_tokens", "parallel_tool_calls", "reasoning", "temperature", "tool_choice", "tools", "top_p" }) {
            if (request.contains(name)) {
                m_asked[name] = request.at(name);
            }
        }
        for (size_t i = 0; request.value("tools", json()).is_array() && i < request.at("tools").size(); i++) {
            if (json & tool = request.at("tools")[i]; tool.is_object()) {
                tool["strict"] = json_value(tool, "strict", false);  // upstream's conversion makes it true where it is missing
            }
        }
        request.erase("top_logprobs");  // 0, which a chat would not take without log-probabilities
        m_model         = request.value("model", json(""));
        m_asked["text"] = request.value("text", json {{ "format", {{ "type", "text" }} }});
    }

    // with the fields that each response has, as the request set them
    void tell(json & answer) override {
        for (const auto & item : m_asked.items()) {
            answer[item.key()] = item.value();
        }
        answer["error"] = nullptr;
        for (const char * name : { "output", "tools" }) {
            answer[name] = answer.value(name, json::array());
        }
        for (const char * name : { "incomplete_details", "instructions", "max_output_tokens", "temperature", "top_p", "previous_response_id" }) {
            answer[name] = answer.value(name, json());
        }
        answer["metadata"]            = json::object();
        answer["parallel_tool_calls"] = answer.value("parallel_tool_calls", json(true));
        answer["tool_choice"]         = answer.value("tool_choice", json("auto"));
        answer["truncation"]          = "disabled";
        answer["created_at"]          = answer.value("created_at", json(m_begun));
        answer["model"]               = answer.value("model", m_model);
    }

    std::vector<json> tell_event(json event) override {
        const std::string type = text_in(event, "type");
        std::vector<json> told;
        if (event.contains("response")) {
            tell(event["response"]);
        }
        if (event.contains("item") && text_in(event.at("item"), "type") == "function_call" && type == "response.output_item.done") {
            const json & call = event.at("item");
            add(told, {{ "type", "response.function_call_arguments.done" }, { "item_id", call.at("id") }, { "name", call.at("name") },
                       { "arguments", call.at("arguments") }});
        }
        if (type == "response.output_item.done" && text_in(event.at("item"), "type") == "reasoning") {
            const json & content = event.at("item").at("content");
            add(told, {{ "type", "response.reasoning_text.done" }, { "item_id", event.at("item").at("id") },
                       { "text", content.empty() ? json("") : content.at(size_t{0}).at("text") }});
        }
        add(told, std::move(event));
        return told;
    }

private:
    // numbers an event, and says which item of the answer it belongs to, and which part of that
    void add(std::vector<json> & told, json event) {
        const std::string type = text_in(event, "type");
        const std::string id   = event.contains("item") ? text_in(event.at("item"), "id") : text_in(event, "item_id");
        if (!id.empty()) {
            event["output_index"] = m_places.emplace(id, m_places.size()).first->second;
        }
        if (type.find("output_text") != std::string::npos || type.find("content_part") != std::string::npos ||
            type.find("reasoning_text") != std::string::npos) {
            event["content_index"] = 0;
        }
        if (type.find("output_text") != std::string::npos) {
            event["logprobs"] = json::array();
        }
        if (type == "response.content_part.added") {
            event["part"]["annotations"] = json::array();
            event["part"]["logprobs"]    = json::array();
        }
        event["sequence_number"] = m_number++;
        told.push_back(std::move(event));
    }

    json                          m_asked = json::object();
    json                          m_model;
    int64_t                       m_begun = std::time(nullptr);
    std::map<std::string, size_t> m_places;  // of items in the answer, by id
    int64_t                       m_number = 0;
};

}  // namespace

std::unique_ptr<dialect> make_responses() { return std::make_unique<responses>(); }

}  // namespace edgekv_server
