// OpenAI's /v1/chat/completions and /v1/completions, which upstream serves but for log-probabilities and for counts of several answers.
#include "server/dialects/dialect.h"
#include "server/http/answers.h"

#include <algorithm>
#include <map>
#include <utility>

namespace edgekv_server {
namespace {

int64_t n_characters(const json & bytes) {
    return std::count_if(bytes.begin(), bytes.end(), [](const json & byte) { return (byte.get<int>() & 0xC0) != 0x80; });
}

class openai : public dialect {
public:
    explicit openai(bool chat) : m_chat(chat) {}

    void take(json & request) override {
        m_request   = request;
        m_has_usage = json_value(json_value(request, "stream_options", json::object()), "include_usage", false);
        const json asked = request.value("logprobs", json());
        m_scored = asked.is_number() || asked == true;
        if (m_scored) {  // a number of ours in its place: upstream takes 0 for none, knows no stream of calls with them, and adds 20 where none are asked for
            m_n_tops = asked.is_number() ? asked.get<int>() : json_value(request, "top_logprobs", 0);
            request.erase("logprobs");
            request.erase("top_logprobs");
            request["n_probs"] = std::max({ json_value(request, "n_probs", 0), m_n_tops, 1 });
        }
        if (request.value("top_logprobs", json()) == 0) {  // none, which upstream refuses without 'logprobs'
            request.erase("top_logprobs");
        }
        if (json_value(request, "echo", false) && json_value(request, "n_probs", 0) > 0) {  // all of the prompt is computed
            request["cache_prompt"]     = false;
            request["backend_sampling"] = false;
        }
    }

    void tell(json & answer) override {
        if (answer.contains("choices")) {
            for (auto & choice : answer.at("choices")) {
                tell_choice(choice);
            }
        }
    }

    // Usage comes once, behind the last answer.
    std::vector<json> tell_event(json event) override {
        const bool is_usage = event.value("choices", json()).empty();
        tell(event);
        if (!is_usage) {
            m_last = json_value(event.at("choices").at(size_t{ 0 }), "index", 0);
        }
        if (event.contains("usage")) {
            m_usages[m_last] = {{ "usage", event.at("usage") }};
            event.erase("usage");
            m_end = event;
            m_end["choices"] = json::array();
        }
        return is_usage ? std::vector<json>{} : std::vector<json>{ std::move(event) };
    }

    std::vector<json> tell_end() override {
        if (!m_has_usage || m_usages.empty()) {
            return {};
        }
        json all = json::array();
        for (const auto & one : m_usages) {
            all.push_back(one.second);
        }
        add_usage(all, m_request);
        m_end["usage"] = all.at(size_t{ 0 }).at("usage");
        return { m_end };
    }

private:
    void tell_choice(json & choice) {
        const json found = choice.value("logprobs", json());
        if (!m_scored || !found.is_object() || found.at("content").empty() || found.at("content").at(size_t{ 0 }).contains("prob")) {
            return;  // the last are llama.cpp's own, of what was left to choose from
        }
        if (!m_chat) {
            choice["logprobs"] = of_completion(found.at("content"), json_value(choice, "index", 0));
            return;
        }
        for (auto & token : choice.at("logprobs").at("content")) {
            while (token.at("top_logprobs").size() > static_cast<size_t>(m_n_tops)) {
                token.at("top_logprobs").erase(token.at("top_logprobs").size() - 1);
            }
        }
    }

    // Lists of tokens and their values, where a chat has a list of objects. Places are characters of the choice's text.
    json of_completion(const json & content, int index) {
        json told = {{ "tokens", json::array() }, { "token_logprobs", json::array() }, { "top_logprobs", json() }, { "text_offset", json::array() }};
        json tops = json::array();
        for (const auto & token : content) {
            std::string name = text_in(token, "token");
            json        most = json::object();
            for (const auto & top : token.at("top_logprobs")) {
                if (top.at("id") == token.at("id") && text_in(top, "token") != "") {
                    name = text_in(top, "token");  // a piece of a stop word waits, and comes as the text of a later token
                }
                if (most.size() < static_cast<size_t>(m_n_tops) && !most.contains(text_in(top, "token"))) {
                    most[text_in(top, "token")] = top.at("logprob");
                }
            }
            const json value = token.at("logprob");
            most[name] = value;
            told["tokens"].push_back(name);
            told["token_logprobs"].push_back(value);
            told["text_offset"].push_back(m_n_told[index]);
            tops.push_back(value.is_null() ? json() : most);  // nothing comes before the first token of a prompt
            m_n_told[index] += n_characters(token.at("bytes"));
        }
        if (m_n_tops > 0) {
            told["top_logprobs"] = tops;
        }
        return told;
    }

    bool                   m_chat;
    json                   m_request;
    bool                   m_has_usage = false;
    bool                   m_scored    = false;
    int                    m_n_tops    = 0;
    std::map<int, int64_t> m_n_told;  // characters, by choice
    std::map<int, json>    m_usages;  // by choice
    json                   m_end;     // what the last event with one had besides
    int                    m_last = 0;
};

}  // namespace

std::unique_ptr<dialect> make_openai(bool chat) { return std::make_unique<openai>(chat); }

}  // namespace edgekv_server
