#include "server/prefix_cache/marks.h"

#include "server/prefix_cache/prefixes.h"
#include "server/prefix_cache/spaces.h"
#include "server/prefix_cache/tasks.h"
#include "server/scheduling/limits.h"
#include "server/scheduling/requests.h"

#include "common.h"

#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>

namespace edgekv_server {

namespace {

constexpr int    MOST_MARKS   = 4;  // as the vendors have it
constexpr int    MEDIUM_ENDS  = 8;  // most tokens that a projector puts behind a medium
constexpr char   SPACE[]      = " \t\r\n";

const std::map<std::string, int> ANTHROPIC = { { "5m", 300 }, { "1h", 3600 } };
const std::map<std::string, int> OPENAI    = { { "30m", 1800 }, { "12h", 12*3600 } };

// the beginning of the texts that this process puts into prompts
const std::string & sign() {
    static const std::string found = [] {
        std::random_device random;
        std::string text = "[edgekv ";
        for (int i = 0; i < 4; ++i) {
            text += string_format("%08x", random());
        }
        return text + " ";
    }();
    return found;
}

std::string sign_of(int ttl_s) { return sign() + std::to_string(ttl_s) + "]"; }

bool given(const json & from, const char * field) { return from.is_object() && from.contains(field) && !from.at(field).is_null(); }

int lifetime(const json & of, const std::map<std::string, int> & known, const char * field, int usual) {
    if (!given(of, "ttl")) {
        return usual;
    }
    const auto found = of.at("ttl").is_string() ? known.find(of.at("ttl").get<std::string>()) : known.end();
    if (found == known.end()) {
        std::string all;
        for (const auto & [name, seconds] : known) {
            all += (all.empty() ? "" : " or ") + ("\"" + name + "\"");
        }
        throw std::invalid_argument(std::string("'ttl' in the field '") + field + "' must be " + all);
    }
    return found->second;
}

// seconds; 0: the part has no mark
int cache_control(const json & part) {
    if (!given(part, "cache_control")) {
        return 0;
    }
    const json & control = part.at("cache_control");
    if (!control.is_object() || !control.contains("type") || control.at("type") != "ephemeral") {
        throw std::invalid_argument("the field 'cache_control' must be {\"type\": \"ephemeral\"}, with \"ttl\": \"5m\" or \"1h\" if you like");
    }
    return lifetime(control, ANTHROPIC, "cache_control", ANTHROPIC.at("5m"));
}

int breakpoint(const json & part, int usual) {
    if (!given(part, "prompt_cache_breakpoint")) {
        return 0;
    }
    const json & point = part.at("prompt_cache_breakpoint");
    if (!point.is_object() || !point.contains("mode") || point.at("mode") != "explicit") {
        throw std::invalid_argument("the field 'prompt_cache_breakpoint' must be {\"mode\": \"explicit\"}, with \"ttl\" if you like");
    }
    return lifetime(point, OPENAI, "prompt_cache_breakpoint", usual);
}

// the lifetime of a request's breakpoints
int options_ttl(const json & request) {
    if (!given(request, "prompt_cache_options")) {
        return OPENAI.at("30m");
    }
    const json & options = request.at("prompt_cache_options");
    if (!options.is_object() || (given(options, "mode") && options.at("mode") != "implicit" && options.at("mode") != "explicit")) {
        throw std::invalid_argument("'mode' in the field 'prompt_cache_options' must be \"implicit\" or \"explicit\"");
    }
    return lifetime(options, OPENAI, "prompt_cache_options", OPENAI.at("30m"));
}

// The texts of a request in order, and the places of its marks among them.
class parts {
public:
    explicit parts(json & request) {
        usual_s = options_ttl(request);
        for (json * tool : list(request, "tools")) {
            json & function = given(*tool, "function") ? (*tool)["function"] : *tool;
            json * const text = given(function, "description") ? &function["description"] : nullptr;
            add(text && shows(*text) ? text : nullptr, *tool);
        }
        for (json * block : list(request, "system")) {
            add(text_of(*block), *block);
        }
        const char * const name = given(request, "messages") ? "messages" : "input";
        const auto messages = list(request, name);
        for (json * one : messages) {
            // an answer that goes on would begin with our text
            message(*one, one == messages.back() && json_value(*one, "role", std::string()) == "assistant");
        }
        const int whole_s = cache_control(request);
        if (whole_s > 0) {
            marks.push_back({ texts.size(), false, whole_s });
            ++n_controls;
        }
        if (n_controls > MOST_MARKS) {
            throw std::invalid_argument("a request may have 4 blocks with 'cache_control' at most; this one has " + std::to_string(n_controls));
        }
        if (marks.size() > MOST_MARKS) {
            marks.erase(marks.begin(), marks.end() - MOST_MARKS);  // the latest count
        }
    }

    bool sign_all() {
        for (const auto & mark : marks) {
            if (mark.begins && mark.n < texts.size()) {
                insert(*texts[mark.n], mark.ttl_s, true);
            } else if (mark.n > 0) {
                insert(*texts[mark.n - 1], mark.ttl_s, false);
            }
        }
        return !marks.empty();
    }

private:
    struct place {
        size_t n;     // texts before it
        bool begins;  // where the next text begins, if there is one; else where the last one ends
        int ttl_s;
    };

    static std::vector<json *> list(json & of, const char * field) {
        std::vector<json *> found;
        if (given(of, field) && of.at(field).is_array()) {
            for (json & one : of[field]) {
                found.push_back(&one);
            }
        }
        return found;
    }

    // templates may strip white space at both ends of a text
    static bool shows(const json & text) { return text.is_string() && text.get<std::string>().find_first_not_of(SPACE) != std::string::npos; }

    static json * text_of(json & block) { return given(block, "text") ? &block["text"] : nullptr; }

    void message(json & one, bool goes_on) {
        if (given(one, "content") && one.at("content").is_string()) {
            add(goes_on ? nullptr : &one["content"], one);
            return;
        }
        for (json * listed : list(one, "content")) {
            json & block = *listed;
            if (given(block, "content") && block.at("content").is_array()) {  // a tool's result
                for (auto & inner : block["content"]) {
                    add(text_of(inner), inner);
                }
                add(nullptr, block);
            } else if (given(block, "content") && block.at("content").is_string()) {
                const std::string text = block.at("content").get<std::string>();
                const auto first = text.find_first_not_of(SPACE);
                const bool data  = first != std::string::npos && (text[first] == '{' || text[first] == '[');  // templates may read it
                add(data ? nullptr : &block["content"], block);
            } else {
                add(goes_on ? nullptr : text_of(block), block);
            }
        }
    }

    void add(json * text, const json & marked) {
        const bool is_text = text && text->is_string();
        const bool usable  = is_text && shows(*text);
        if (usable) {
            texts.push_back(text);
        }
        const int control_s = cache_control(marked);
        const int ttl_s     = control_s > 0 ? control_s : breakpoint(marked, usual_s);
        if (ttl_s == 0) {
            return;
        }
        if (is_text && !usable) {
            throw std::invalid_argument(std::string("the field '") + (control_s > 0 ? "cache_control" : "prompt_cache_breakpoint") +
                                        "' cannot mark an empty text; leave the block out, or mark the one before it");
        }
        n_controls += control_s > 0;
        marks.push_back({ texts.size(), !usable, ttl_s });
    }

    static void insert(json & text, int ttl_s, bool begins) {
        std::string found = text.get<std::string>();
        const auto at = begins ? found.find_first_not_of(SPACE) : found.find_last_not_of(SPACE) + 1;
        found.insert(at, sign_of(ttl_s));
        text = found;
    }

    std::vector<json *> texts;
    std::vector<place>  marks;
    int n_controls = 0;
    int usual_s    = 0;  // of OpenAI's marks
};

// the number of tokens that the prompt's first bytes have
int tokens_of(const server_tokens & tokens, const std::string & prompt, size_t n_bytes, const llama_vocab * vocab) {
    const std::string medium = get_media_marker();
    size_t begin = 0;  // of the text after the last medium
    int    first = 0;
    for (size_t at = prompt.find(medium); at != std::string::npos && at + medium.size() <= n_bytes; at = prompt.find(medium, begin)) {
        begin = at + medium.size();
        while (first < static_cast<int>(tokens.size()) && tokens[first] != LLAMA_TOKEN_NULL) {
            ++first;
        }
        if (first < static_cast<int>(tokens.size())) {
            first += static_cast<int>(mtmd_input_chunk_get_n_tokens(tokens.find_chunk(first).get()));
        }
    }
    const auto text = common_tokenize(vocab, prompt.substr(begin, n_bytes - begin), begin == 0, true);
    int end = first;
    for (int skip = 0; skip <= (begin == 0 ? 0 : MEDIUM_ENDS); ++skip) {
        int n = 0;
        while (n < static_cast<int>(text.size()) && first + skip + n < static_cast<int>(tokens.size()) && tokens[first + skip + n] == text[n]) {
            ++n;
        }
        if (n > 0 && first + skip + n > end) {
            end = first + skip + n;
        }
    }
    return end;
}

// seconds for which the whole prompt stays, 0: it is not marked; and whether it stays only in memory
int whole_s(const json & request, bool & in_memory) {
    int seconds = 0;
    if (given(request, "prompt_cache_retention")) {
        const json & retention = request.at("prompt_cache_retention");
        if (retention != "24h" && retention != "in_memory") {
            throw std::invalid_argument("the field 'prompt_cache_retention' must be \"in_memory\" or \"24h\"");
        }
        in_memory = retention == "in_memory";
        seconds   = in_memory ? 0 : 24*3600;
    }
    const int options_s = options_ttl(request);
    const bool explicitly = !given(request, "prompt_cache_options") || request.at("prompt_cache_options").value("mode", json()) == "explicit";
    return explicitly ? seconds : std::max(seconds, options_s);
}

}  // namespace

bool sign_marks(json & request) {
    return request.is_object() && parts(request).sign_all();
}

void take_marks(json & converted) {
    converted.erase("edgekv_marks");
    if (!converted.contains("prompt") || !converted.at("prompt").is_string()) {
        return;
    }
    std::string prompt = converted.at("prompt").get<std::string>();
    json marks = json::array();
    for (auto at = prompt.find(sign()); at != std::string::npos; at = prompt.find(sign(), at)) {
        const auto seconds = at + sign().size();
        const auto end     = prompt.find(']', seconds);
        marks.push_back(json::array({ static_cast<int64_t>(at), std::stoi(prompt.substr(seconds)) }));
        prompt.erase(at, end + 1 - at);
    }
    if (!marks.empty()) {
        converted["prompt"]       = prompt;
        converted["edgekv_marks"] = marks;
    }
}

void mark_prompt(int task, const server_tokens & tokens, const json & converted, const llama_vocab * vocab) {
    prompt_marks wished;
    auto & marks = wished.marks;
    const json listed = json_value(converted, "edgekv_marks", json::array());
    const std::string prompt = converted.at("prompt").is_string() ? converted.at("prompt").get<std::string>() : std::string();
    for (const auto & mark : listed) {
        const bool is_one = mark.is_array() && mark.size() == 2 && mark[0].is_number_integer() && mark[1].is_number_integer();
        const int64_t at  = is_one ? mark[0].get<int64_t>() : -1;
        if (at < 0 || at > static_cast<int64_t>(prompt.size())) {
            throw std::invalid_argument("the field 'edgekv_marks' is the server's own; leave it out");
        }
        marks.push_back({ tokens_of(tokens, prompt, static_cast<size_t>(at), vocab), mark[1].get<int>() });
    }
    if (const int seconds = whole_s(converted, wished.in_memory); seconds > 0) {
        marks.push_back({ static_cast<int>(tokens.size()), seconds });
    }
    marks.erase(std::remove_if(marks.begin(), marks.end(), [](const edgekv_mark & mark) { return mark.n <= 0 || mark.ttl_s <= 0; }), marks.end());
    std::sort(marks.begin(), marks.end(), [](const edgekv_mark & a, const edgekv_mark & b) { return a.n < b.n; });
    if (!marks.empty() || wished.in_memory) {
        note_of(task).marks = std::move(wished);
    }
}

void add_cache_usage(json & usage, int task) {
    const int n_read = usage.at("cache_read_input_tokens").get<int>();
    int n_before = n_read, n_short = 0, n_long = 0;
    if (edgekv_prefixes_kept()) {
        for (const auto & mark : known_of(task).marks.marks) {
            (mark.ttl_s > ANTHROPIC.at("5m") ? n_long : n_short) += std::max(0, mark.n - n_before);
            n_before = std::max(n_before, mark.n);
        }
    }
    usage["input_tokens"]                = usage.at("input_tokens").get<int>() - n_short - n_long;
    usage["cache_creation_input_tokens"] = n_short + n_long;
    usage["cache_creation"]              = { { "ephemeral_5m_input_tokens", n_short }, { "ephemeral_1h_input_tokens", n_long } };
    usage["edgekv"]                      = edgekv_usage_json(task);
}

server_http_context::handler_t kept_prompts(const char * method) {
    return [method](const server_http_req & req) {
        auto res = std::make_unique<server_http_res>();
        res->headers["Cache-Control"] = "no-store";
        if (!edgekv_prefixes_kept()) {
            answer_error(*res, "this server keeps no prompts; start it with --cache-ram or --cache-dir", ERROR_TYPE_NOT_SUPPORTED);
            return res;
        }
        json fields = req.body.empty() ? json::object() : json::parse(req.body);
        if (!fields.is_object()) {
            throw std::invalid_argument("the request must be a JSON object");
        }
        for (const auto & [name, value] : req.params) {
            fields[name] = value;
        }
        res->status = current().caches(method, space_of(req.headers, fields).c_str(), fields.dump().c_str(), &res->data);
        return res;
    };
}

}  // namespace edgekv_server
