// Anthropic's API: /v1/messages.
#include "server/dialects/dialect.h"

#include <algorithm>
#include <map>
#include <utility>

namespace edgekv_server {
namespace {

json text_block(const std::string & text, const json & marked) {
    json block = {{ "type", "text" }, { "text", text }};
    if (marked.contains("cache_control")) {
        block["cache_control"] = marked.at("cache_control");
    }
    return block;
}

std::string texts_of(const json & blocks, const std::string & where) {
    std::string text = blocks.is_string() ? blocks.get<std::string>() : "";
    for (const auto & block : blocks.is_array() ? blocks : json::array()) {
        if (text_in(block, "type") != "text") {
            decline("a block '" + text_in(block, "type") + "' in " + where + " is not supported; text alone is");
        }
        text += text_in(block, "text");
    }
    return text;
}

json of_document(const json & block) {
    const json        source = block.value("source", json::object());
    const std::string kind   = text_in(source, "type");
    if (kind != "text" && kind != "content") {
        decline("a document of the kind '" + kind + "' cannot be read here; send its text, with the source type 'text'");
    }
    std::string text;
    for (const char * name : { "title", "context" }) {
        text += text_in(block, name).empty() ? "" : text_in(block, name) + "\n";
    }
    return text_block(text + (kind == "text" ? text_in(source, "data") : texts_of(source.value("content", json()), "a document")), block);
}

json of_search_result(const json & block) {
    return text_block(text_in(block, "title") + "\n" + text_in(block, "source") + "\n" + texts_of(block.value("content", json()), "a search_result"), block);
}

// The blocks of a message, or of a tool's result, in kinds that upstream's conversion reads.
void take_blocks(json & content, bool in_result) {
    json taken = json::array();
    for (auto & block : content) {
        const std::string type = text_in(block, "type");
        if (type == "document") {
            taken.push_back(of_document(block));
        } else if (type == "search_result") {
            taken.push_back(of_search_result(block));
        } else if (type == "image") {
            const std::string kind = text_in(block.value("source", json::object()), "type");
            if (kind != "base64" && kind != "url") {
                decline("an image of the kind '" + kind + "' is not supported; send it as base64 or url");
            }
            taken.push_back(block);
        } else if (type == "text" || (!in_result && (type == "thinking" || type == "tool_use"))) {
            taken.push_back(block);
        } else if (type == "tool_result" && !in_result) {
            if (block.contains("content") && block.at("content").is_array()) {
                take_blocks(block.at("content"), true);
            }
            taken.push_back(block);
        } else if (type != "redacted_thinking") {  // which nobody here can read
            decline("a content block '" + type + "' is not supported" + (in_result ? " in a tool_result" : ""));
        }
    }
    content = std::move(taken);
}

// The text of a message that is text alone
std::string plain_text(const json & message) {
    const json content = message.value("content", json());
    if (content.is_string()) {
        return content.get<std::string>();
    }
    std::string text;
    for (const auto & block : content.is_array() ? content : json::array()) {
        if (text_in(block, "type") != "text") {
            return {};
        }
        text += text_in(block, "text");
    }
    return text;
}

class messages : public dialect {
public:
    void take(json & request) override {
        for (auto & message : request.at("messages")) {
            if (message.is_object() && message.contains("content") && message.at("content").is_array()) {
                take_blocks(message.at("content"), false);
            }
        }
        if (request.value("system", json()).is_array()) {
            texts_of(request.at("system"), "'system'");
        }
        for (const auto & tool : request.value("tools", json::array())) {
            const std::string type = text_in(tool, "type");
            if (!type.empty() && type != "custom" && !tool.contains("input_schema")) {
                decline("the tool '" + text_in(tool, "name") + "' of the type '" + type + "' is not supported; offer it with an 'input_schema'");
            }
        }
        for (const char * name : { "continue_final_message", "add_generation_prompt", "reasoning_effort" }) {
            request.erase(name);  // not this API's
        }
        const json last = request.at("messages").back();
        m_begun = text_in(last, "role") == "assistant" ? plain_text(last) : "";
        if (!m_begun.empty()) {
            request["continue_final_message"] = true;
            request["add_generation_prompt"]  = false;
        }
        if (text_in(request.value("thinking", json::object()), "type") == "disabled") {
            request["reasoning_effort"] = "none";
        }
        for (const auto & word : request.value("stop_sequences", json::array())) {
            m_stops.push_back(word.get<std::string>());
        }
    }

    void tell(json & answer) override {
        tell_stop(answer);
        json & content = answer["content"];
        for (size_t i = 0; content.is_array() && i < content.size() && !m_begun.empty(); ++i) {
            if (text_in(content.at(i), "type") == "text") {
                std::string text = text_in(content.at(i), "text");
                if (text.compare(0, m_begun.size(), m_begun) == 0) {
                    content.at(i)["text"] = text.substr(m_begun.size());
                }
                break;
            }
        }
    }

    void tell_error(json & body) override {
        if (!body.contains("error")) {  // a stream's has no outer object
            const json error = body;
            body = {{ "error", error }};
        }
        static const std::map<std::string, const char *> NAMES = {{ "server_error", "api_error" }, { "unavailable_error", "overloaded_error" }};
        const auto name = NAMES.find(text_in(body.at("error"), "type"));
        if (name != NAMES.end()) {
            body["error"]["type"] = name->second;
        }
        body["type"] = "error";
    }

    std::vector<json> tell_event(json event) override {
        std::vector<json> told;
        const std::string type = text_in(event, "type");
        const int         at   = json_value(event, "index", -1);
        if (type == "content_block_start") {
            close(told);
            m_blocks[at] = event.at("content_block");
            open(at, told);
        } else if (type == "content_block_delta") {
            if (at != m_open && text_in(event.at("delta"), "type") == "signature_delta") {
                return told;  // of a block that is closed
            }
            if (at != m_open) {  // a block goes on that another one closed
                close(told);
                open(at, told);
            }
            event["index"] = m_index;
            m_signed       = m_signed || text_in(event.at("delta"), "type") == "signature_delta";
            told.push_back(std::move(event));
        } else if (type == "content_block_stop") {
            if (at == m_open) {
                close(told);
            }
        } else {
            if (type == "message_delta") {
                close(told);
                tell_stop(event["delta"]);
            }
            if (type.find("_error") != std::string::npos) {
                tell_error(event);
            }
            told.push_back(std::move(event));
        }
        return told;
    }

private:
    // the reason for which an answer ended: a stop sequence counts where the request named it, and not where the template did
    void tell_stop(json & answer) const {
        const std::string word = text_in(answer, "stop_sequence");
        if (word.empty() || std::find(m_stops.begin(), m_stops.end(), word) == m_stops.end()) {
            answer["stop_sequence"] = nullptr;
        } else if (answer.at("stop_reason") == "end_turn") {
            answer["stop_reason"] = "stop_sequence";
        }
    }

    void open(int at, std::vector<json> & told) {
        m_open   = at;
        m_signed = false;
        ++m_index;
        json block = m_blocks[at];
        if (text_in(block, "type") == "tool_use" && !block.contains("input")) {
            block["input"] = json::object();
        }
        told.push_back({{ "type", "content_block_start" }, { "index", m_index }, { "content_block", block }});
    }

    void close(std::vector<json> & told) {
        if (m_open < 0) {
            return;
        }
        if (text_in(m_blocks[m_open], "type") == "thinking" && !m_signed) {
            told.push_back({{ "type", "content_block_delta" }, { "index", m_index }, { "delta", {{ "type", "signature_delta" }, { "signature", "" }} }});
        }
        told.push_back({{ "type", "content_block_stop" }, { "index", m_index }});
        m_open = -1;
    }

    std::string              m_begun;  // what the answer goes on with
    std::vector<std::string> m_stops;
    std::map<int, json>      m_blocks;      // as they began, by upstream's number
    int                      m_open  = -1;  // upstream's number of the open block
    int                      m_index = -1;  // the client's
    bool                     m_signed = false;
};

}  // namespace

std::unique_ptr<dialect> make_messages() { return std::make_unique<messages>(); }

}  // namespace edgekv_server
