#include "server/chat/repairs.h"

#define XXH_INLINE_ALL
#include "hash/xxhash/xxhash.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <set>
#include <utility>

namespace edgekv_server {
namespace {

bool is_system(const common_chat_msg & m) { return m.role == "system" || m.role == "developer"; }

// "3 system"; a role comes from the client, and this text goes into a header
std::string label(const wording & c, size_t i) {
    static const std::set<std::string> known = { "system", "developer", "user", "assistant", "tool" };
    return std::to_string(c.numbers[i]) + (known.count(c.messages[i].role) ? " " + c.messages[i].role : "");
}

void erase(wording & c, size_t i) {
    c.messages.erase(c.messages.begin() + static_cast<std::ptrdiff_t>(i));
    c.numbers.erase(c.numbers.begin() + static_cast<std::ptrdiff_t>(i));
}

void insert(wording & c, size_t i, common_chat_msg message, size_t number) {
    c.messages.insert(c.messages.begin() + static_cast<std::ptrdiff_t>(i), std::move(message));
    c.numbers.insert(c.numbers.begin() + static_cast<std::ptrdiff_t>(i), number);
}

void move_to(wording & c, size_t from, size_t to) {
    common_chat_msg message = c.messages[from];
    const size_t    number  = c.numbers[from];
    erase(c, from);
    insert(c, to, std::move(message), number);
}

std::string joined(const std::string & a, const std::string & b, const char * between) { return a.empty() || b.empty() ? a + b : a + between + b; }

// the parts of a message as one text, as upstream joins them for templates that take texts alone; beside media they stay parts
void join_parts(common_chat_msg & m) {
    if (m.content_parts.empty() || m.contains_media()) {
        return;
    }
    m.content = m.render_content("\n");
    m.content_parts.clear();
}

void add_text(common_chat_msg & to, const std::string & text, bool at_front) {
    if (text.empty()) {
        return;
    }
    if (to.content_parts.empty()) {
        to.content = at_front ? joined(text, to.content, "\n\n") : joined(to.content, text, "\n\n");
        return;
    }
    to.content_parts.insert(at_front ? to.content_parts.begin() : to.content_parts.end(), { "text", text });
}

// puts message `from` into message `to`, before or behind what that says
void merge(wording & c, size_t from, size_t to) {
    common_chat_msg & source = c.messages[from];
    common_chat_msg & target = c.messages[to];
    c.moved.push_back(label(c, from) + " into " + label(c, to));
    if (source.content_parts.empty()) {
        add_text(target, source.content, from < to);
    } else {
        if (target.content_parts.empty() && !target.content.empty()) {
            target.content_parts.push_back({ "text", target.content });
            target.content.clear();
        }
        target.content_parts.insert(from < to ? target.content_parts.begin() : target.content_parts.end(), source.content_parts.begin(),
                                    source.content_parts.end());
        join_parts(target);
    }
    target.tool_calls.insert(from < to ? target.tool_calls.begin() : target.tool_calls.end(), source.tool_calls.begin(), source.tool_calls.end());
    const auto & first  = from < to ? source : target;
    const auto & second = from < to ? target : source;
    target.reasoning_content = joined(first.reasoning_content, second.reasoning_content, "\n");
    erase(c, from);
}

void join_parts_of_results(wording & c) {
    for (auto & m : c.messages) {
        if (m.role == "tool") {
            join_parts(m);
        }
    }
}

void join_all_parts(wording & c) {
    for (auto & m : c.messages) {
        join_parts(m);
    }
}

// A result stands behind its call, before anything else.
void results_to_calls(wording & c) {
    for (size_t i = 0; i < c.messages.size(); ++i) {
        std::set<std::string> open;
        for (const auto & call : c.messages[i].tool_calls) {
            open.insert(call.id);
        }
        size_t place = i + 1;
        for (size_t j = i + 1; j < c.messages.size() && c.messages[j].role != "assistant"; ++j) {
            if (c.messages[j].role == "tool" && open.count(c.messages[j].tool_call_id)) {
                if (j != place) {
                    c.moved.push_back(label(c, j) + " behind " + label(c, place - 1));
                    move_to(c, j, place);
                }
                ++place;
            }
        }
    }
}

// system and developer messages into the first message
void gather_systems(wording & c) {
    for (size_t i = 1; i < c.messages.size();) {
        if (!is_system(c.messages[i])) {
            ++i;
        } else if (is_system(c.messages[0])) {
            merge(c, i, 0);
        } else {
            c.moved.push_back(label(c, i) + " before " + label(c, 0));
            move_to(c, i, 0);
            ++i;
        }
    }
}

void as_user(wording & c, size_t i) {
    auto & m = c.messages[i];
    c.moved.push_back(label(c, i) + " as user");
    join_parts(m);
    add_text(m, m.tool_name.empty() ? "Result of a tool:" : "Result of the tool " + m.tool_name + ":", true);
    m.role = "user";
    m.tool_name.clear();
    m.tool_call_id.clear();
}

// results of calls that the conversation does not have
void results_alone(wording & c) {
    std::set<std::string> open;
    bool                  called = false;
    for (size_t i = 0; i < c.messages.size(); ++i) {
        auto & m = c.messages[i];
        if (m.role != "tool") {
            called = called && m.role != "assistant" && m.role != "user";
            if (!m.tool_calls.empty()) {
                called = true;
                open.clear();
                for (const auto & call : m.tool_calls) {
                    open.insert(call.id);
                }
            }
        } else if (!called || (!m.tool_call_id.empty() && !open.count(m.tool_call_id))) {
            as_user(c, i);
        }
    }
}

// A conversation begins with a user's message: answers before it go into it; without any, the system's words are the user's.
void begin_with_user(wording & c) {
    const size_t first = !c.messages.empty() && is_system(c.messages[0]) ? 1 : 0;
    const auto   user  = std::find_if(c.messages.begin(), c.messages.end(), [](const common_chat_msg & m) { return m.role == "user"; });
    if (user == c.messages.end()) {
        if (first == 1) {
            c.moved.push_back(label(c, 0) + " as user");
            c.messages[0].role = "user";
        } else {
            common_chat_msg empty;
            empty.role = "user";
            insert(c, 0, std::move(empty), 0);
            c.moved.push_back("an empty user message before 1");
        }
        return;
    }
    for (size_t i = static_cast<size_t>(user - c.messages.begin()); i > first; --i) {
        auto & before = c.messages[i - 1];
        if (before.role != "assistant" || !before.tool_calls.empty()) {
            return;
        }
        join_parts(before);
        add_text(before, "The assistant said:", true);
        merge(c, i - 1, i);
    }
}

void alternate(wording & c) {
    for (size_t i = 1; i < c.messages.size();) {
        if (c.messages[i].role == c.messages[i - 1].role && c.messages[i].role != "tool") {
            merge(c, i, i - 1);
        } else {
            ++i;
        }
    }
}

// each call in a message of its own, before its result
void one_call_each(wording & c) {
    for (size_t i = 0; i < c.messages.size(); ++i) {
        const auto calls = c.messages[i].tool_calls;
        if (calls.size() < 2) {
            continue;
        }
        c.messages[i].tool_calls.resize(1);
        common_chat_msg next = c.messages[i];
        next.content.clear();
        next.content_parts.clear();
        next.reasoning_content.clear();
        for (size_t k = 1; k < calls.size(); ++k) {
            c.moved.push_back("a call of " + label(c, i) + " behind it");
            size_t behind = i + 1;
            for (size_t j = i + 1; j < c.messages.size() && c.messages[j].role == "tool"; ++j) {
                if (c.messages[j].tool_call_id == calls[k - 1].id) {
                    move_to(c, j, behind++);
                    break;
                }
            }
            next.tool_calls = { calls[k] };
            insert(c, behind, next, c.numbers[i]);
            i = behind;
        }
    }
}

// the text of a message with calls in a message before it
void text_before_calls(wording & c) {
    for (size_t i = 0; i < c.messages.size(); ++i) {
        auto & m = c.messages[i];
        if (m.tool_calls.empty() || (m.content.empty() && m.content_parts.empty())) {
            continue;
        }
        c.moved.push_back("the text of " + label(c, i) + " before it");
        common_chat_msg said = m;
        said.tool_calls.clear();
        m.content.clear();
        m.content_parts.clear();
        m.reasoning_content.clear();
        insert(c, i, std::move(said), c.numbers[i]);
        ++i;
    }
}

// Thinking of earlier turns is left out, where an answer's text does not come beside it.
void answers_alone(wording & c) {
    for (size_t i = 0; i < c.messages.size(); ++i) {
        if (!c.messages[i].reasoning_content.empty() && !(c.messages[i].content.empty() && c.messages[i].content_parts.empty())) {
            c.moved.push_back("thinking of " + label(c, i) + " left out");
            c.messages[i].reasoning_content.clear();
        }
    }
}

// calls as text of the assistant, results as the user's: what every template takes
void calls_as_text(wording & c) {
    for (size_t i = 0; i < c.messages.size(); ++i) {
        auto & m = c.messages[i];
        if (!m.tool_calls.empty()) {
            c.moved.push_back("calls of " + label(c, i) + " as text");
        }
        for (const auto & call : m.tool_calls) {
            join_parts(m);
            add_text(m, "<tool_call>\n{\"name\": " + common_json(call.name).dump() + ", \"arguments\": " + (call.arguments.empty() ? "{}" : call.arguments) +
                            "}\n</tool_call>", false);
        }
        m.tool_calls.clear();
        if (m.role == "tool") {
            as_user(c, i);
        }
    }
    alternate(c);
    begin_with_user(c);
}

void systems_into_user(wording & c) {
    while (c.messages.size() > 1 && is_system(c.messages[0]) && c.messages[1].role == "user") {
        merge(c, 0, 1);
    }
}

// the same for the same id
std::string short_id(const std::string & id) {
    static const char * letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    if (id.empty() || (id.size() == 9 && std::all_of(id.begin(), id.end(), [](unsigned char ch) { return std::isalnum(ch); }))) {
        return id;
    }
    uint64_t hash = XXH3_64bits(id.data(), id.size());
    std::string result;
    for (int i = 0; i < 9; ++i, hash /= 62) {
        result += letters[hash % 62];
    }
    return result;
}

}  // namespace

wording::wording(const std::vector<common_chat_msg> & given) : messages(given) {
    for (size_t i = 1; i <= given.size(); ++i) {
        numbers.push_back(i);
    }
}

bool shorten_ids(std::vector<common_chat_msg> & messages) {
    bool       changed = false;
    const auto shorten = [&changed](std::string & id) {
        std::string shorter = short_id(id);
        changed = changed || shorter != id;
        id      = std::move(shorter);
    };
    for (auto & m : messages) {
        shorten(m.tool_call_id);
        for (auto & call : m.tool_calls) {
            shorten(call.id);
        }
    }
    return changed;
}

const std::vector<repair> & all_repairs() {
    static const std::vector<repair> list = { join_parts_of_results, join_all_parts, results_to_calls, gather_systems,
                                              results_alone, begin_with_user, alternate, one_call_each, text_before_calls,
                                              answers_alone, calls_as_text, systems_into_user };
    return list;
}

}  // namespace edgekv_server
