// Checks native/llama/llama-edgekv-stacks.h and -triggers.h in libllama, against llama.cpp's own way, which reads a text character by character and copies
// stacks whole. Built and run by test_stacks.py.
#include "../server/check.h"
#include "llama-grammar.h"

#include <algorithm>
#include <memory>
#include <new>
#include <random>
#include <stdexcept>
#include <string>

static size_t n_bytes = 0;  // allocated so far, by libllama too

__attribute__((noinline)) void * operator new(size_t n) {
    n_bytes += n;
    return std::malloc(n);
}
__attribute__((noinline)) void operator delete(void * p) noexcept { std::free(p); }
__attribute__((noinline)) void operator delete(void * p, size_t) noexcept { std::free(p); }

struct ends {
    void operator()(llama_grammar * grammar) const { llama_grammar_free_impl(grammar); }
};
using grammar_ptr = std::unique_ptr<llama_grammar, ends>;

static grammar_ptr made(const char * text) { return grammar_ptr(llama_grammar_init_impl(nullptr, text, "root", false, nullptr, 0, nullptr, 0)); }
static grammar_ptr copy(const grammar_ptr & grammar) { return grammar_ptr(llama_grammar_clone_impl(*grammar)); }

// whether any stack follows
template <typename Function> static bool follows(Function function) {
    try {
        function();
        return true;
    } catch (const std::runtime_error &) {
        return false;
    }
}

static std::vector<std::string> rejected(const grammar_ptr & grammar, const llama_grammar_stack & stack, const std::vector<std::string> & pieces) {
    std::vector<std::vector<uint32_t>> codes;
    for (const auto & piece : pieces) {
        codes.emplace_back(piece.begin(), piece.end());
        codes.back().push_back(0);
    }
    llama_grammar_candidates candidates;
    for (size_t i = 0; i < pieces.size(); i++) {
        candidates.push_back({ i, codes[i].data(), { 0, 0 }, static_cast<llama_token>(i) });
    }
    std::vector<std::string> found;
    for (const auto & reject : llama_grammar_reject_candidates_for_stack(grammar->rules, stack, candidates)) {
        CHECK(reject.code_points == codes[reject.index].data());
        found.push_back(pieces[reject.index]);
    }
    std::sort(found.begin(), found.end());
    return found;
}

// the stacks by their places in the rules, of which each copy has its own
static std::vector<std::vector<size_t>> places(const llama_grammar & grammar) {
    std::vector<std::vector<size_t>> found;
    for (const auto & stack : grammar.stacks) {
        found.emplace_back();
        for (const auto * element : stack) {
            size_t n = 0;
            for (const auto & rule : grammar.rules) {
                if (element >= rule.data() && element < rule.data() + rule.size()) {
                    found.back().push_back(n + (element - rule.data()));
                }
                n += rule.size();
            }
        }
    }
    std::sort(found.begin(), found.end());
    return found;
}

static std::string drawn(std::mt19937 & random, const std::string & letters, size_t longest) {
    std::string piece;
    for (size_t n = 1 + random() % longest; n > 0; n--) {
        piece += letters[random() % letters.size()];
    }
    return piece;
}

static const char * JSON = R"(
root   ::= value
value  ::= object | array | string | [0-9]+ | "true"
object ::= "{" space (string ":" space value ("," space string ":" space value)*)? "}" space
array  ::= "[" space (value ("," space value)*)? "]" space
string ::= "\"" [a-c]* "\"" space
space  ::= | " " | "\n" [ \t]{0,3}
)";

static void test_stacks_are_the_same() {
    const std::pair<const char *, const char *> grammars[] = {
        { JSON, "[]{}\"ab:,1 \ntrue" },
        { "root ::= a | b\na ::= \"x\" a \"y\" | \"x\"\nb ::= (\"x\" | \"xx\")* [^z]? .", "xyz" },  // ambiguous, and with empty alternatives
        { "root ::= x{0,4} (\"b\" root)? | e e root2\ne ::= | \"c\"\nroot2 ::= (e \"d\")*\nx ::= \"a\" | e e", "abcd" },
    };
    std::mt19937 random(1);
    for (const auto & [text, letters] : grammars) {
        const auto whole = made(text);
        for (int run = 0; run < 200; run++) {
            auto now = copy(whole);
            for (int token = 0; token < 12; token++) {
                const std::string piece = drawn(random, letters, 3);
                auto              other = copy(now);
                auto              next  = copy(now);
                const bool        goes  = follows([&] { llama_grammar_accept_token(*next, 0, piece); });
                CHECK(goes == follows([&] { llama_grammar_accept_str(*other, piece); }));
                if (!goes) {
                    continue;
                }
                CHECK(places(*next) == places(*other));
                now = std::move(next);
            }
            std::vector<std::string> pieces, expected;
            for (int i = 0; i < 20; i++) {
                pieces.push_back(drawn(random, letters, 4));
            }
            for (size_t at = 0; at < now->stacks.size(); at++, expected.clear()) {
                for (const auto & piece : pieces) {
                    auto alone = copy(now);
                    alone->stacks = { alone->stacks[at] };
                    if (!follows([&] { llama_grammar_accept_str(*alone, piece); })) {
                        expected.push_back(piece);
                    }
                }
                std::sort(expected.begin(), expected.end());
                CHECK(rejected(now, now->stacks[at], pieces) == expected);
            }
        }
    }
}

static void test_tokens_of_a_grammar() {
    const auto grammar = made("root ::= <[1]> \"a\" !<[2]>");
    const std::vector<std::string> pieces = { "x", "y", "a" };  // tokens 0, 1, 2
    CHECK(rejected(grammar, grammar->stacks[0], pieces) == (std::vector<std::string>{ "a", "x" }));
    llama_grammar_accept_token(*grammar, 1, "y");
    CHECK(rejected(grammar, grammar->stacks[0], pieces) == (std::vector<std::string>{ "x", "y" }));
    llama_grammar_accept_token(*grammar, 2, "a");
    CHECK(rejected(grammar, grammar->stacks[0], pieces) == (std::vector<std::string>{ "a" }));
}

static void test_too_many_stacks_are_refused() {
    std::string text = "root ::= \"a\" a0\n";
    for (int i = 0; i < 20; i++) {
        const std::string n = std::to_string(i), next = "a" + std::to_string(i + 1);
        text += "a" + n + " ::= " + next + " b" + n + " | " + next + " c" + n + "\nb" + n + " ::= \"b\"\nc" + n + " ::= \"c\"\n";
    }
    const auto grammar = made((text + "a20 ::= \"d\"\n").c_str());
    CHECK(!follows([&] { llama_grammar_accept_token(*grammar, 0, "a"); }));
}

// bytes allocated for a token of n brackets within depth ones
static size_t bytes(size_t depth, size_t n) {
    const auto        grammar = made(JSON);
    const std::string piece(n, '[');
    for (size_t i = 0; i < depth; i += n) {
        llama_grammar_accept_token(*grammar, 0, piece);
    }
    const size_t before = n_bytes;
    CHECK(rejected(grammar, grammar->stacks[0], { piece }).size() <= 1);
    llama_grammar_accept_token(*grammar, 0, piece);
    return n_bytes - before;
}

static void test_work_is_a_sum() {
    for (size_t n : { 16, 64 }) {
        CHECK(bytes(64 * n, 2 * n) < 3 * bytes(32 * n, n));  // twice as much where depth and characters add up; four times where they multiply
    }
}

// std::regex, which reads a pattern by recursion, is not asked
static void test_a_word_of_any_length_is_a_trigger() {
    const std::string word(1 << 20, 'n');
    const char *      patterns[] = { word.c_str() };
    const grammar_ptr grammar(llama_grammar_init_impl(nullptr, "root ::= \"n\"", "root", true, patterns, 1, nullptr, 0));
    CHECK(grammar->trigger_patterns[0].find("a" + word) == 1);
}

int main() {
    test_stacks_are_the_same();
    test_tokens_of_a_grammar();
    test_too_many_stacks_are_refused();
    test_work_is_a_sum();
    test_a_word_of_any_length_is_a_trigger();
}
