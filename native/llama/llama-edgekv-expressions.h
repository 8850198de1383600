#pragma once

// Expressions of pre-tokenizers, read into steps for the matcher of llama-edgekv-splits.cpp.

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace edgekv_splits {

constexpr int NO_BOUND   = -1;
constexpr int MOST_LOOPS = 32;  // bits of a character's memory

struct char_set {
    std::bitset<256> low;
    std::vector<std::pair<char32_t, char32_t>> high;  // sorted, first and last
    bool others = false;  // characters from 256 on that are in no range of high: [^...]

    void add(char32_t first, char32_t last) {
        for (char32_t c = first; c <= last && c < 256; c++) {
            low.set(c);
        }
        if (last >= 256) {
            high.emplace_back(first, last);
        }
    }

    bool has(char32_t c) const {
        if (c < 256) {
            return low[c];
        }
        const auto behind = std::upper_bound(high.begin(), high.end(), c, [](char32_t a, const auto & range) { return a < range.first; });

        return (behind != high.begin() && c <= behind[-1].second) != others;
    }
};

enum class what { SET, EITHER, LOOP, GO, LOOK, LOOK_NOT, END, FOUND };

struct step {
    what kind;
    int  to;     // EITHER, LOOP, LOOK: where it goes on if the next step leads nowhere, or behind the look; GO: where; SET: its number
    int  loop;   // LOOP: its number
};

struct program {
    std::vector<step>     steps;
    std::vector<char_set> sets;
    int n_loops = 0;
};

// Thrown to split(): the expression is not one of ours.
struct unknown {};

class compiler {
  public:
    explicit compiler(const std::u32string & expression) : text(expression) {
        const bool empty = alternatives();
        if (at < text.size() || (empty && consumes)) {
            throw unknown();
        }
        emit(what::FOUND);
    }

    program made;

  private:
    const std::u32string & text;
    size_t at       = 0;
    int    looks    = 0;      // looks ahead around this place
    bool   consumes = false;  // a set outside of them

    bool next_is(char32_t c) const { return at < text.size() && text[at] == c; }

    bool take(const char32_t * word) {
        const std::u32string wanted = word;
        if (text.compare(at, wanted.size(), wanted) != 0) {
            return false;
        }
        at += wanted.size();
        return true;
    }

    char32_t take() {
        if (at == text.size()) {
            throw unknown();
        }

        return text[at++];
    }

    int emit(what kind, int to = 0, int loop = 0) {
        made.steps.push_back({ kind, to, loop });

        return here() - 1;
    }

    int here() const { return static_cast<int>(made.steps.size()); }

    // What is read again is emitted again.
    std::tuple<size_t, size_t, size_t, int> place() const { return { at, made.steps.size(), made.sets.size(), made.n_loops }; }

    void back_to(const std::tuple<size_t, size_t, size_t, int> & begin) {
        at = std::get<0>(begin);
        made.steps.resize(std::get<1>(begin));
        made.sets.resize(std::get<2>(begin));
        made.n_loops = std::get<3>(begin);
    }

    // These four return whether what they read can match nothing.
    bool alternatives() {
        const auto begin = place();
        bool empty = sequence();
        if (next_is('|')) {
            back_to(begin);
            const int either = emit(what::EITHER);
            empty = sequence();
            take();
            const int go = emit(what::GO);
            made.steps[either].to = here();
            empty = alternatives() || empty;
            made.steps[go].to = here();
        }
        return empty;
    }

    bool sequence() {
        bool empty = true;
        while (at < text.size() && text[at] != '|' && text[at] != ')') {
            empty = repeated() && empty;
        }
        return empty;
    }

    bool repeated() {
        const auto   begin  = place();
        const bool   empty  = atom();
        const size_t behind = at;
        const auto [least, most] = quantifier();
        const size_t after = at;
        if (after == behind) {
            return empty;
        }
        if (empty || next_is('?') || next_is('+')) {  // nothing repeated; lazy or possessive
            throw unknown();
        }
        back_to(begin);
        const auto again = [&]() {
            at = std::get<0>(begin);
            atom();
        };
        for (int i = 0; i < least; i++) {
            again();
        }
        std::vector<int> ways;
        if (most == NO_BOUND) {
            ways.push_back(emit(what::LOOP, 0, made.n_loops++));
            again();
            emit(what::GO, ways[0]);
        }
        for (int i = least; i < most; i++) {
            ways.push_back(emit(what::EITHER));
            again();
        }
        for (const int way : ways) {
            made.steps[way].to = here();
        }
        if (made.n_loops > MOST_LOOPS) {
            throw unknown();
        }
        at = after;
        return least == 0;
    }

    std::pair<int, int> quantifier() {
        if (take(U"*")) {
            return { 0, NO_BOUND };
        }
        if (take(U"+")) {
            return { 1, NO_BOUND };
        }
        if (take(U"?")) {
            return { 0, 1 };
        }
        if (!take(U"{")) {
            return { 1, 1 };
        }
        const int least = number();
        const int most  = take(U",") ? (next_is('}') ? NO_BOUND : number()) : least;
        if (!take(U"}") || (most != NO_BOUND && most < least)) {
            throw unknown();
        }
        return { least, most };
    }

    int number() {
        int n = 0;
        do {
            const char32_t digit = take();
            if (digit < '0' || digit > '9' || n > 1000) {
                throw unknown();
            }
            n = n * 10 + static_cast<int>(digit - '0');
        } while (!next_is(',') && !next_is('}'));
        return n;
    }

    bool atom() {
        if (take(U"(?=") || take(U"(?!")) {
            const int look = emit(text[at - 1] == '=' ? what::LOOK : what::LOOK_NOT);
            looks++;
            alternatives();
            looks--;
            emit(what::FOUND);
            made.steps[look].to = here();
            close();
            return true;
        }
        if (take(U"(?:") || take(U"(")) {
            const bool empty = alternatives();
            close();
            return empty;
        }
        if (take(U"$")) {
            emit(what::END);
            return true;
        }
        char_set set;
        if (take(U"[")) {
            set = bracket();
        } else if (std::u32string(U".^*+?{}]").find(text[at]) != std::u32string::npos) {
            throw unknown();
        } else {
            one(set);
        }
        consumes = consumes || looks == 0;
        emit(what::SET, static_cast<int>(made.sets.size()));
        made.sets.push_back(std::move(set));

        return false;
    }

    void close() {
        if (!take(U")")) {
            throw unknown();
        }
    }

    char_set bracket() {
        const bool not_these = take(U"^");
        char_set set;
        if (next_is(']')) {
            throw unknown();
        }
        while (!take(U"]")) {
            if (take(U"[:") || take(U"[.") || take(U"[=")) {
                throw unknown();
            }
            const auto first = one(set);
            if (first && next_is('-') && at + 1 < text.size() && text[at + 1] != ']') {
                at++;
                const auto last = one(set);
                if (!last || *last < *first) {
                    throw unknown();
                }
                set.add(*first, *last);
            }
        }
        std::sort(set.high.begin(), set.high.end());
        for (size_t i = 1; i < set.high.size(); i++) {  // has() looks at one range
            set.high[i].second = std::max(set.high[i].second, set.high[i - 1].second);
        }
        if (not_these) {
            set.low.flip();
            set.others = true;
        }
        return set;
    }

    // Adds one character to the set and returns it, or the characters of an escape that stands for many.
    std::optional<char32_t> one(char_set & set) {
        char32_t c = take();
        if (c == '\\') {
            c = take();
            char_set many;
            switch (c) {
                case 't': c = '\t'; break;
                case 'n': c = '\n'; break;
                case 'r': c = '\r'; break;
                case 'd':
                    set.add('0', '9');
                    return std::nullopt;
                case 's':
                case 'S':
                    many.add('\t', '\r');
                    many.add(' ', ' ');
                    if (c == 'S') {
                        many.low.flip();
                        many.add(256, 0x7FFFFFFF);
                    }
                    set.low |= many.low;
                    set.high.insert(set.high.end(), many.high.begin(), many.high.end());
                    return std::nullopt;
                default:
                    if (c >= 128 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) {
                        throw unknown();
                    }
            }
        }
        set.add(c, c);
        return c;
    }
};

}  // namespace edgekv_splits
