// Stacks of a grammar that follow from one of them, as lists that share what lies beneath. Upstream copies the whole stack for each alternative
// of each character, so that a token costs its characters times the depth of the text. Included by llama-grammar.cpp, behind what it matches with.
#pragma once

#include <algorithm>
#include <set>
#include <stdexcept>
#include <tuple>
#include <vector>

class llama_edgekv_stacks {
public:
    llama_edgekv_stacks(const llama_grammar_rules & rules, const llama_grammar_stack & first) : rules_(rules), first_(first) {}

    // Adds the stacks behind all these characters (the last entry, a 0, is none of them), each once. Throws std::runtime_error as advance() does.
    void accept(const std::vector<uint32_t> & characters, llama_grammar_stacks & found) {
        std::vector<place> stacks{ { nullptr, first_.size() } };
        for (size_t i = 0; i + 1 < characters.size() && !stacks.empty(); i++) {
            std::vector<place> next;
            for (const place stack : stacks) {
                if (stack.empty() || of_tokens(stack)) {
                    continue;
                }
                if (const auto match = llama_grammar_match_char(top(stack), characters[i]); match.first) {
                    advance(behind(stack, match.second), next);
                }
            }
            stacks = std::move(next);
        }
        for (const place stack : stacks) {
            if (auto written = write(stack); std::find(found.begin(), found.end(), written) == found.end()) {
                found.push_back(std::move(written));
            }
        }
    }

    // the candidates that cannot follow
    llama_grammar_candidates reject(const llama_grammar_candidates & candidates) { return reject({ nullptr, first_.size() }, candidates); }

private:
    struct entry;

    struct place {  // a stack
        const entry * last;
        size_t        n;  // without entries: so many elements of the first stack

        bool empty() const { return last == nullptr && n == 0; }
        bool operator==(const place & other) const { return last == other.last && n == other.n; }
        bool operator<(const place & other) const { return std::tie(last, n) < std::tie(other.last, other.n); }
    };

    struct entry {
        const llama_grammar_element * element;
        place                         below;

        bool operator<(const entry & other) const { return std::tie(element, below) < std::tie(other.element, other.below); }
    };

    const llama_grammar_rules & rules_;
    const llama_grammar_stack & first_;
    std::set<entry>             entries_;

    const llama_grammar_element * top(place stack) const { return stack.last ? stack.last->element : first_[stack.n - 1]; }

    bool of_tokens(place stack) const { return top(stack)->type == LLAMA_GRETYPE_TOKEN || top(stack)->type == LLAMA_GRETYPE_TOKEN_NOT; }

    // with `next` on it, unless it is the end of a sequence
    place with(place stack, const llama_grammar_element * next) {
        return llama_grammar_is_end_of_sequence(next) ? stack : place{ &*entries_.insert({ next, stack }).first, 0 };
    }

    // with `next` in the place of its last element
    place behind(place stack, const llama_grammar_element * next) { return with(stack.last ? stack.last->below : place{ nullptr, stack.n - 1 }, next); }

    // Adds the stacks that this one means, which end with characters or a token, each once. Throws std::runtime_error where there are too many.
    void advance(place stack, std::vector<place> & found) {
        std::vector<place> todo{ stack };
        std::set<place>    seen;
        while (!todo.empty()) {
            const place now = todo.back();
            todo.pop_back();
            if (!seen.insert(now).second) {
                continue;
            }
            if (seen.size() > 50000) {
                throw std::runtime_error("the grammar is too ambiguous");
            }
            if (now.empty() || top(now)->type != LLAMA_GRETYPE_RULE_REF) {
                if (std::find(found.begin(), found.end(), now) == found.end()) {
                    found.push_back(now);
                }
                continue;
            }
            const place                   rest = behind(now, top(now) + 1);
            const llama_grammar_element * next = rules_[top(now)->value].data();
            for (todo.push_back(with(rest, next)); next->type != LLAMA_GRETYPE_END; next++) {
                if (next->type == LLAMA_GRETYPE_ALT) {
                    todo.push_back(with(rest, next + 1));
                }
            }
        }
    }

    llama_grammar_candidates reject(place stack, const llama_grammar_candidates & candidates) {
        llama_grammar_candidates rejects, left;
        rejects.reserve(candidates.size());
        if (stack.empty() || of_tokens(stack)) {
            for (const auto & candidate : candidates) {
                const bool at_end = *candidate.code_points == 0;
                if (at_end ? candidate.partial_utf8.n_remain != 0 : stack.empty() || !llama_grammar_match_token(top(stack), candidate.id)) {
                    rejects.push_back(candidate);
                }
            }
            return rejects;
        }
        const llama_grammar_element * element = top(stack);
        left.reserve(candidates.size());
        for (const auto & candidate : candidates) {
            if (*candidate.code_points == 0) {
                if (candidate.partial_utf8.n_remain != 0 && !llama_grammar_match_partial_char(element, candidate.partial_utf8)) {
                    rejects.push_back(candidate);
                }
            } else if (llama_grammar_match_char(element, *candidate.code_points).first) {
                left.push_back({ candidate.index, candidate.code_points + 1, candidate.partial_utf8, candidate.id });
            } else {
                rejects.push_back(candidate);
            }
        }
        if (!left.empty()) {
            std::vector<place> stacks;
            advance(behind(stack, llama_grammar_match_char(element, 0).second), stacks);
            for (const place next : stacks) {
                left = reject(next, left);
            }
        }
        for (const auto & candidate : left) {
            rejects.push_back({ candidate.index, candidate.code_points - 1, candidate.partial_utf8, candidate.id });
        }
        return rejects;
    }

    llama_grammar_stack write(place stack) const {
        llama_grammar_stack above;
        for (; stack.last; stack = stack.last->below) {
            above.push_back(stack.last->element);
        }
        llama_grammar_stack whole(first_.begin(), first_.begin() + stack.n);
        whole.insert(whole.end(), above.rbegin(), above.rend());
        return whole;
    }
};
