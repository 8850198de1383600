#include "server/chat/shown.h"

#include "json.h"

#include <algorithm>
#include <string_view>

namespace edgekv_server {
namespace {

constexpr size_t NOWHERE   = std::string::npos;
constexpr size_t SHORT     = 16;   // bytes; a shorter text might be a part of one of the template's words
constexpr size_t MOST_PIECE = 200;  // bytes of a text that are looked for where the template changed it

constexpr const char * WHITE = " \t\r\n\v\f";

struct range {
    size_t begin = 0;
    size_t end   = 0;
};

std::string_view trimmed(std::string_view text) {
    const size_t first = text.find_first_not_of(WHITE);
    return first == NOWHERE ? std::string_view() : text.substr(first, text.find_last_not_of(WHITE) - first + 1);
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

// the longest run of characters that no way of writing a text changes, or as much of it as tells
std::string_view longest_piece(std::string_view text) {
    std::string_view longest;
    for (size_t i = 0; i < text.size() && longest.size() < MOST_PIECE;) {
        size_t end = i;
        while (end < text.size() && end - i < MOST_PIECE && (is_letter(text[end]) || text[end] == ' ' || text[end] == '.' || text[end] == ',')) {
            ++end;
        }
        if (end - i > longest.size()) {
            longest = text.substr(i, end - i);
        }
        i = end + 1;
    }
    return trimmed(longest);
}

// where the texts of a conversation stand in its prompt: each in a place of its own
class places {
  public:
    explicit places(std::string_view prompt) : prompt(prompt) {}

    // behind the texts before it, as a rule; a template may also gather texts elsewhere
    bool take(std::string_view text) {
        size_t at = find(text, last.end, prompt.size());
        if (at == NOWHERE) {
            at = find(text, 0, last.end);
        }
        if (at == NOWHERE) {
            return false;
        }
        const range found = { at, at + text.size() };
        taken.push_back(found);
        if (at >= last.end) {
            last = found;
        }
        return true;
    }

    bool between(std::string_view text, size_t begin, size_t end) const { return find(text, begin, end) != NOWHERE; }

    range last;  // the text that is furthest behind

  private:
    // whether a word goes on at `at`; the letters of an escape, such as \n or \u00fc in JSON, are of no word
    bool goes_on(size_t at, char first) const {
        const bool escape = (at > 1 && prompt[at - 2] == '\\') || (at > 5 && prompt[at - 6] == '\\' && prompt[at - 5] == 'u');
        return at > 0 && is_letter(first) && is_letter(prompt[at - 1]) && !escape;
    }

    size_t find(std::string_view text, size_t begin, size_t end) const {
        const std::string_view searched = prompt.substr(0, end);
        for (size_t at = searched.find(text, begin); at != NOWHERE;) {
            const size_t behind = at + text.size();
            const bool   after  = behind < prompt.size() && is_letter(prompt[behind]) && is_letter(text.back());
            const bool   within = text.size() < SHORT && (after || goes_on(at, text.front()));
            const auto   first  = at < last.end ? taken.begin() : taken.end();
            const auto   other  = std::find_if(first, taken.end(), [&](const range & r) { return at < r.end && r.begin < behind; });
            const bool   free   = other == taken.end();
            if (free && !within) {
                return at;
            }
            at = searched.find(text, free ? at + 1 : other->end);
        }
        return NOWHERE;
    }

    std::string_view   prompt;
    std::vector<range> taken;
};

bool take_text(places & where, std::string_view text) {
    text = trimmed(text);
    if (text.empty() || where.take(text)) {
        return true;
    }
    const std::string quoted = common_json(std::string(text)).dump();
    if (where.take(std::string_view(quoted).substr(1, quoted.size() - 2))) {
        return true;
    }
    const std::string_view piece = longest_piece(text);
    return !piece.empty() && where.take(piece);
}

// A template that writes a list of parts as a list does not take them.
bool as_list(const std::string & prompt, const range & text) {
    const std::string_view before = std::string_view(prompt).substr(0, text.begin);
    return !before.empty() && (before.back() == '\'' || before.back() == '"') && before.size() > 12 &&
           before.substr(before.size() - 12).find("text") != NOWHERE && before.substr(before.size() - 5).find(':') != NOWHERE;
}

bool take_content(places & where, const common_chat_msg & message, const std::string & prompt, const std::vector<std::string> & thinking_ends) {
    std::string_view text = message.content;
    if (message.role == "assistant") {  // what stands before is thinking
        for (const auto & end : thinking_ends) {
            const size_t thought = text.rfind(end);
            text = thought == NOWHERE ? text : text.substr(thought + end.size());
        }
    }
    if (!take_text(where, text)) {
        return false;
    }
    for (const auto & part : message.content_parts) {
        if (part.type == "text" && !trimmed(part.text).empty() && (!take_text(where, part.text) || as_list(prompt, where.last))) {
            return false;
        }
    }
    return true;
}

bool has_values(const places & where, const common_json & given, const range & within) {
    if (given.is_string()) {
        const std::string text = given.get<std::string>();
        const auto        piece = longest_piece(text);
        return piece.empty() || where.between(piece, within.begin, within.end);
    }
    if (given.is_object() || given.is_array()) {
        for (const auto & item : given.items()) {
            if (!has_values(where, item.value(), within)) {
                return false;
            }
        }
    }
    return true;
}

bool has_call(const places & where, const common_chat_tool_call & call, const range & within) {
    if (!where.between(call.name, within.begin, within.end)) {
        return false;
    }
    const common_json arguments = common_json::parse_no_throw(call.arguments);
    if (!arguments.is_discarded()) {
        return has_values(where, arguments, within);
    }
    const auto piece = longest_piece(call.arguments);
    return piece.empty() || where.between(piece, within.begin, within.end);
}

bool is_short(std::string_view text) { return !trimmed(text).empty() && trimmed(text).size() < SHORT; }

}  // namespace

bool has_short_text(const common_chat_msg & message) {
    return is_short(message.content) || std::any_of(message.content_parts.begin(), message.content_parts.end(), [](const auto & part) {
        return part.type == "text" && is_short(part.text);
    });
}

size_t first_not_shown(const std::vector<common_chat_msg> & messages, const std::string & prompt, const std::vector<std::string> & thinking_ends) {
    places             where(prompt);
    std::vector<range> texts;  // by message: the last text so far
    for (size_t i = 0; i < messages.size(); ++i) {
        if (!take_content(where, messages[i], prompt, thinking_ends)) {
            return i;
        }
        texts.push_back(where.last);
    }
    for (size_t i = 0; i < messages.size(); ++i) {
        // calls stand between the texts of the messages before them and behind their results
        range within = { i == 0 ? 0 : texts[i - 1].end, prompt.size() };
        for (size_t j = i + 1; j < messages.size() && within.end == prompt.size(); ++j) {
            if (messages[j].role != "tool" && texts[j].begin > texts[i].begin) {
                within.end = texts[j].begin;
            }
        }
        for (const auto & call : messages[i].tool_calls) {
            if (!has_call(where, call, within)) {
                return i;
            }
        }
    }
    return ALL_SHOWN;
}

}  // namespace edgekv_server
