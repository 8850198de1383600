#include "llama-edgekv-triggers.h"

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <vector>

namespace {

constexpr size_t MOST = 1024;  // characters of a pattern; std::regex reads it, and takes steps without a character, by recursion

// behind the set that begins before `at`
size_t behind_set(const std::string & pattern, size_t at) {
    while (at < pattern.size() && pattern[at] != ']') {
        const char next = at + 1 < pattern.size() ? pattern[at + 1] : '\0';
        if (pattern[at] == '[' && (next == ':' || next == '.' || next == '=')) {
            at = std::min(pattern.find(std::string{ next, ']' }, at + 2), pattern.size());
        }
        at += pattern[at] == '\\' ? 2 : 1;
    }

    return at + 1;
}

struct group {
    size_t size = 0;  // characters, repeats written out
    bool   looks = false;
};

// one of all texts that the pattern finds begins with these characters; all: they are the whole pattern
std::string beginning(const std::string & pattern, bool & all) {
    std::string letters;
    all = true;
    for (size_t i = 0; i < pattern.size(); i++) {
        const bool escaped = pattern[i] == '\\' && i + 1 < pattern.size() && std::ispunct(static_cast<unsigned char>(pattern[i + 1]));
        if (!escaped && std::string("\\.^$|()[]{}*+?").find(pattern[i]) != std::string::npos) {
            all = false;
            if (!letters.empty() && std::string("*+?{").find(pattern[i]) != std::string::npos) {
                letters.pop_back();
            }
            break;
        }
        i += escaped;
        letters += pattern[i];
    }

    return letters;
}

// throws std::runtime_error for a parenthesis that closes none; those that are not closed std::regex refuses
bool has_alternatives(const std::string & pattern) {
    int  depth = 0;
    bool found = false;
    for (size_t i = 0; i < pattern.size(); i++) {
        const char c = pattern[i];
        if (c == '\\') {
            i++;
        } else if (c == '[') {
            i = behind_set(pattern, i + 1) - 1;
        }
        found = found || (c == '|' && depth == 0);
        depth += (c == '(') - (c == ')');
        if (depth < 0) {
            throw std::runtime_error("a pattern of grammar_triggers cannot be used: ')' closes nothing");
        }
    }
    return found;
}

}  // namespace

void llama_edgekv_check_trigger(const std::string & pattern) {
    std::vector<group> groups(1);
    size_t last  = 0;  // size of what a repeat would repeat
    size_t least = pattern.size();
    for (size_t i = 0; i < pattern.size() && least <= MOST; i++) {
        const char c = pattern[i];
        if (c == '(') {
            const char look = pattern.compare(i, 2, "(?") == 0 && i + 2 < pattern.size() ? pattern[i + 2] : '\0';
            groups.push_back({ 1, groups.back().looks || look == '=' || look == '!' });
            continue;
        }
        size_t added = 1;
        if (c == ')' && groups.size() > 1) {
            added = groups.back().size;
            groups.pop_back();
        } else if (c == '*' || c == '+' || c == '{') {
            const size_t comma  = pattern.find_first_not_of("0123456789", i + 1);
            const bool   ranges = c == '{' && comma != std::string::npos && pattern[comma] == ',';
            const size_t number = ranges && comma + 1 < pattern.size() && std::isdigit(static_cast<unsigned char>(pattern[comma + 1])) ? comma + 1 : i + 1;
            if (groups.back().looks && (c != '{' || (ranges && number == i + 1))) {
                throw std::runtime_error("a pattern of grammar_triggers looks ahead without end; use no *, + or {n,} behind (?= and (?!");
            }
            if (c == '{') {
                const std::string digits = pattern.substr(number, pattern.find_first_not_of("0123456789", number) - number);
                added = last * (digits.size() > 4 ? MOST + 1 : std::stoul("0" + digits));
                i = std::min(pattern.find('}', i), pattern.size());
            }
        } else if (c == '[') {
            i = behind_set(pattern, i + 1) - 1;
        } else if (c == '\\') {
            i++;
        }
        groups.back().size += added;
        last  = added;
        least = std::max(least, groups.back().size);
    }
    if (least > MOST) {
        throw std::runtime_error("a word or pattern of grammar_triggers is longer than " + std::to_string(MOST) + " characters, with its repeats written out");
    }
}

std::regex llama_edgekv_trigger(const std::string & pattern) {
    const bool alternatives = has_alternatives(pattern);
    const bool at_begin     = !pattern.empty() && pattern[0] == '^' && !alternatives;
    if (bool all = false; beginning(pattern, all).size() > 0 && all) {
        return {};  // a word is searched as it is, and may be longer than std::regex bears
    }
    try {
        return std::regex((at_begin ? "(" : "[\\s\\S]*?(") + pattern + ")[\\s\\S]*", std::regex::ECMAScript | std::regex_constants::__polynomial);
    } catch (const std::regex_error & error) {
        throw std::runtime_error(std::string("a pattern of grammar_triggers cannot be used: ") + error.what());
    }
}

size_t llama_edgekv_find_trigger(const std::string & pattern, const std::regex & found, const std::string & text) {
    bool all = false;
    const std::string letters = has_alternatives(pattern) ? "" : beginning(pattern, all);
    const size_t      first   = text.find(letters);
    if (all || first == std::string::npos) {
        return first;
    }
    std::smatch match;
    if (!std::regex_match(text, match, found)) {
        return std::string::npos;
    }
    for (size_t i = 2; i < match.size(); i++) {
        if (match.length(i) > 0) {
            return match.position(i);
        }
    }

    return match.position(1);
}
