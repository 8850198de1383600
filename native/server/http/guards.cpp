#include "server/http/guards.h"

#include "llama-edgekv-triggers.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <stdexcept>

namespace edgekv_guards {
namespace {

constexpr int MOST_LEVELS = 200;  // a tool's schema has about ten; overflow begins at about ten thousand
constexpr size_t MOST_NAME = 4096;  // bytes; std::regex, by which names become rules of a grammar, overflows at about 26,000
constexpr int MOST_STRINGS = 4;  // levels of JSON within strings of JSON

[[noreturn]] void refuse(const char * what) {
    throw std::invalid_argument(std::string(what) + " in the request is nested more than " + std::to_string(MOST_LEVELS) + " levels deep");
}

void check_parentheses(const std::string & pattern) {
    int depth = 0;
    for (size_t i = 0; i < pattern.size(); i++) {
        if (pattern[i] == '\\') {
            i++;
        } else if (pattern[i] == '(' && ++depth > MOST_LEVELS) {
            refuse("a pattern");
        } else if (pattern[i] == ')') {
            depth--;
        }
    }
}

void check_name(size_t n_bytes) {
    if (n_bytes > MOST_NAME) {
        throw std::invalid_argument("a name in the request has " + std::to_string(n_bytes) + " bytes; at most " + std::to_string(MOST_NAME) + " are allowed");
    }
}

// The text between two quotes without its escapes; empty: they are none of JSON's, and the body will be refused.
std::string decoded(const std::string & text) {
    if (text.find('\\') == std::string::npos) {
        return text;
    }
    const json found = json::parse_no_throw("\"" + text + "\"");
    return found.is_string() ? found.get<std::string>() : "";
}

void check_json(const std::string & text, int n_strings) {
    int         depth = 0;
    std::string key;
    for (size_t i = 0; i < text.size(); i++) {
        const char c = text[i];
        if ((c == '{' || c == '[') && ++depth > MOST_LEVELS) {
            refuse("JSON");
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (c == '"') {
            const size_t first = i + 1;
            for (i = first; i < text.size() && text[i] != '"'; i++) {
                i += text[i] == '\\';
            }
            const size_t last = std::min(i, text.size());
            const size_t next = text.find_first_not_of(" \t\r\n", last + 1);
            if (next != std::string::npos && text[next] == ':') {
                check_name(last - first);
                key = decoded(text.substr(first, last - first));
                if (depth == 1 && n_strings == 0 && key == "chat_parser") {
                    throw std::invalid_argument("chat_parser cannot be given: the server makes it of the model's template");
                }
            } else if (key == "pattern") {
                check_parentheses(decoded(text.substr(first, last - first)));
            } else if (key == "name" || key == "$ref") {
                check_name(last - first);
            } else if (key == "arguments" && n_strings < MOST_STRINGS) {  // of a tool call; templates get it as JSON
                check_json(decoded(text.substr(first, last - first)), n_strings + 1);
            }
        }
    }
}

[[noreturn]] void refuse(const json & entry, const char * why) {
    throw std::invalid_argument("the field 'logit_bias' has " + entry.dump().substr(0, 100) + ": " + why);
}

void check_bias(const json & entry, const json & bias) {
    if (!bias.is_number() && !(bias.is_boolean() && !bias.get<bool>())) {
        refuse(entry, "a bias is a number, or false for a token that must not come");
    }
}

void check_token(const json & entry, const json & token, const llama_vocab * vocab) {
    if (!token.is_string() && !token.is_number_integer()) {
        refuse(entry, "a token is a number or a text");
    }
    const int64_t id = token.is_string() ? 0 : token.get<int64_t>();
    if (id < 0 || id >= llama_vocab_n_tokens(vocab)) {
        refuse(entry, "the model has no such token; /tokenize tells the numbers of its tokens");
    }
}

}  // namespace

void check_body(const std::string & body) {
    const size_t first = body.find_first_not_of("\xEF\xBB\xBF \t\r\n");  // skips a byte order mark and white space
    if (first != std::string::npos && (body[first] == '{' || body[first] == '[')) {
        check_json(body, 0);
    }
}

void check_trigger(const common_grammar_trigger & trigger) {
    if (trigger.type < COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN || trigger.type > COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL) {
        throw std::invalid_argument("a type in grammar_triggers is none of 0 (token), 1 (word), 2 and 3 (pattern)");
    }
    if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD) {
        llama_edgekv_check_trigger(regex_escape(trigger.value));
    } else if (trigger.type != COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN) {
        llama_edgekv_check_trigger(trigger.value);
    }
}

void drop_empty(std::vector<std::string> & words) {
    words.erase(std::remove(words.begin(), words.end(), ""), words.end());
}

void take_none(const json & given, std::vector<std::string> & words) {
    if (given.is_array() && given.empty()) {
        words = { "" };
    }
}

void read_biases(const json & given, const llama_vocab * vocab, std::vector<llama_logit_bias> & biases) {
    if (given.is_object()) {
        for (const auto & item : given.items()) {
            char * end = nullptr;
            const json entry = {{ item.key(), item.value() }};
            const long id    = std::strtol(item.key().c_str(), &end, 10);
            check_token(entry, item.key().empty() || *end ? json(item.key()) : json(static_cast<int64_t>(id)), vocab);
            check_bias(entry, item.value());
        }
        return;
    }
    if (!given.is_array()) {
        refuse(given, "write {\"token\": bias, ...} or [[token, bias], ...]");
    }
    for (const auto & entry : given) {
        const bool is_pair = entry.is_array() && entry.size() == 2;
        if (!is_pair && !(entry.is_object() && entry.contains("token") && entry.contains("bias"))) {
            refuse(entry, "write [token, bias] or {\"token\": token, \"bias\": bias}");
        }
        const json & token = is_pair ? entry[0] : entry.at("token");
        const json & bias  = is_pair ? entry[1] : entry.at("bias");
        check_token(entry, token, vocab);
        check_bias(entry, bias);
        if (!is_pair) {
            const float by = bias.is_boolean() ? -INFINITY : bias.get<float>();
            const auto tokens = token.is_string() ? common_tokenize(vocab, token.get<std::string>(), false) : std::vector<llama_token>{ token.get<llama_token>() };
            for (const llama_token one : tokens) {
                biases.push_back({ one, by });
            }
        }
    }
}

void bound_reach(common_params_sampling & sampling, int32_t n_ctx) {
    for (int32_t * reach : { &sampling.penalty_last_n, &sampling.dry_penalty_last_n }) {
        *reach = *reach < 0 ? n_ctx : std::min(*reach, n_ctx);
    }
}

}  // namespace edgekv_guards
