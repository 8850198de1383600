#include "server/chat/shown.h"

#include "json.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string_view>

namespace edgekv_server {
namespace {

constexpr size_t NOWHERE = std::string::npos;
constexpr size_t SHORT   = 16;  // bytes; a shorter text might be a part of another word
constexpr size_t N_MARK  = 18;  // bytes; all marks have one length, and are long enough to be found anywhere

struct range {
    size_t begin = 0;
    size_t end   = 0;
};

std::string_view trimmed(std::string_view text) {
    constexpr const char * WHITE = " \t\r\n\v\f";
    const size_t first = text.find_first_not_of(WHITE);
    return first == NOWHERE ? std::string_view() : text.substr(first, text.find_last_not_of(WHITE) - first + 1);
}

// Where a text stands, as it is or as JSON has it; its begin is NOWHERE if it does not, or is short and stands within a word.
range find(std::string_view prompt, std::string_view text, size_t from) {
    const auto is_letter = [&](size_t at) { return at < prompt.size() && std::isalnum(static_cast<unsigned char>(prompt[at])); };
    const std::string json   = common_json(std::string(text)).dump();
    const auto        quoted = std::string_view(json).substr(1, json.size() - 2);
    for (const auto spelled : { text, quoted }) {
        const size_t at = prompt.find(spelled, from);
        if (at != NOWHERE && (text.size() >= SHORT || !(is_letter(at - 1) || is_letter(at + spelled.size())))) {
            return { at, at + spelled.size() };
        }
    }
    return { NOWHERE, NOWHERE };
}

// A template that writes a list of parts as a list does not take them.
bool as_list(std::string_view prompt, size_t begin) {
    const std::string_view before = prompt.substr(0, begin);
    return before.size() > 12 && (before.back() == '\'' || before.back() == '"') && before.substr(before.size() - 12).find("text") != NOWHERE &&
           before.substr(before.size() - 5).find(':') != NOWHERE;
}

std::string_view said(const common_chat_msg & message, const std::vector<std::string> & thinking_ends) {
    std::string_view text = message.content;
    for (const auto & end : thinking_ends) {
        const size_t thought = message.role == "assistant" ? text.rfind(end) : NOWHERE;
        text = thought == NOWHERE ? text : text.substr(thought + end.size());
    }
    return trimmed(text);
}

// whether the texts of a call's arguments, an object as a rule, stand there; those within lists and objects stand beside them
bool has_texts(std::string_view prompt, const std::string & arguments, size_t from) {
    const common_json given = common_json::parse_no_throw(arguments);
    for (const auto & item : given.is_object() ? given.items() : common_json::object().items()) {
        const std::string text = item.value().is_string() ? item.value().get<std::string>() : "";
        if (!trimmed(text).empty() && find(prompt, trimmed(text), from).begin == NOWHERE) {
            return false;
        }
    }
    return given.is_object();
}

std::string mark_of(const std::string & text) { return text.size() < N_MARK ? "" : text.substr(text.size() - N_MARK); }

}  // namespace

size_t first_not_found(const std::vector<common_chat_msg> & messages, const std::string & prompt, const std::vector<std::string> & thinking_ends) {
    std::vector<range> texts;  // by message: the last text so far
    range              last;
    for (size_t i = 0; i < messages.size(); ++i) {
        const auto take = [&](std::string_view text, bool is_part) {
            const range at = text.empty() ? last : find(prompt, text, last.end);
            last = at.begin == NOWHERE ? last : at;
            return at.begin != NOWHERE && !(is_part && !text.empty() && as_list(prompt, at.begin));
        };
        bool found = take(said(messages[i], thinking_ends), false);
        for (const auto & part : messages[i].content_parts) {
            found = found && (part.type != "text" || take(trimmed(part.text), true));
        }
        if (!found) {
            return i;
        }
        texts.push_back(last);
    }
    for (size_t i = 0; i < messages.size(); ++i) {
        // calls stand between the texts of the messages before them and behind their results
        size_t end = prompt.size();
        for (size_t j = i + 1; j < messages.size() && end == prompt.size(); ++j) {
            end = messages[j].role != "tool" && texts[j].begin > texts[i].begin ? texts[j].begin : end;
        }
        const std::string_view before = std::string_view(prompt).substr(0, end);
        const size_t           from   = i == 0 ? 0 : texts[i - 1].end;
        for (const auto & call : messages[i].tool_calls) {
            if (before.find(call.name, from) == NOWHERE || !has_texts(before, call.arguments, from)) {
                return i;
            }
        }
    }
    return ALL_SHOWN;
}

std::vector<common_chat_msg> marked(std::vector<common_chat_msg> messages) {
    uint64_t   n    = 100000000000;
    const auto next = [&n] { return "edgekv" + std::to_string(n++); };
    for (auto & m : messages) {
        m.content += trimmed(m.content).empty() ? "" : " " + next();
        for (auto & part : m.content_parts) {
            part.text += part.type != "text" || trimmed(part.text).empty() ? "" : " " + next();
        }
        for (auto & call : m.tool_calls) {
            common_json arguments = common_json::parse_no_throw(call.arguments);
            if (arguments.is_object()) {
                arguments["edgekv"] = next();
                call.arguments      = arguments.dump();
            }
        }
    }
    return messages;
}

size_t first_not_shown(const std::vector<common_chat_msg> & marked, const std::string & prompt) {
    const auto has = [&](const std::string & text) { return trimmed(text).empty() || prompt.find(mark_of(text)) != NOWHERE; };
    const auto at  = std::find_if_not(marked.begin(), marked.end(), [&](const common_chat_msg & m) {
        return has(m.content) && std::all_of(m.content_parts.begin(), m.content_parts.end(), [&](const auto & part) {
            const size_t begin = find(prompt, trimmed(part.text), 0).begin;
            return part.type != "text" || (has(part.text) && (begin == NOWHERE || !as_list(prompt, begin)));
        }) && std::all_of(m.tool_calls.begin(), m.tool_calls.end(), [&](const auto & call) {
            const common_json arguments = common_json::parse_no_throw(call.arguments);
            return !arguments.is_object() || prompt.find(arguments.at("edgekv").get<std::string>()) != NOWHERE;
        });
    });
    return at == marked.end() ? ALL_SHOWN : static_cast<size_t>(at - marked.begin());
}

}  // namespace edgekv_server
