#include "server/chat/messages.h"

#include "server/chat/cut.h"
#include "server/chat/repairs.h"
#include "server/chat/shown.h"
#include "server/http/clients.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

namespace edgekv_server {
namespace {

constexpr size_t MOST_MOVED = 20;  // moved messages in a header, which clients bound

using templates = common_chat_templates;
using inputs_t  = common_chat_templates_inputs;

struct outcome {
    std::optional<common_chat_params> params;  // unless refused
    size_t             lost = ALL_SHOWN;  // the first message that is not shown
    std::exception_ptr refusal;           // the template's
    std::vector<std::string> moved;       // by repairs

    bool fits() const { return params && lost == ALL_SHOWN; }
};

outcome render(const templates * tmpls, const inputs_t & inputs) {
    outcome result;
    try {
        result.params = common_chat_templates_apply(tmpls, inputs);
    } catch (const std::exception &) {
        result.refusal = std::current_exception();
    }
    return result;
}

bool refused(const templates * tmpls, inputs_t inputs, std::vector<common_chat_msg> messages) {
    inputs.messages = std::move(messages);
    return render(tmpls, inputs).refusal != nullptr;
}

// The first message that the template does not take behind those before it, as well as can be told without trying each.
size_t refused_message(const templates * tmpls, inputs_t inputs, const std::vector<common_chat_msg> & messages) {
    size_t taken = 0, not_taken = messages.size();
    while (taken + 1 < not_taken) {
        const size_t n = (taken + not_taken) / 2;
        (refused(tmpls, inputs, { messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(n) }) ? not_taken : taken) = n;
    }
    return not_taken - 1;
}

class fitter {
  public:
    fitter(const templates * tmpls, const inputs_t & inputs) : tmpls(tmpls), given(inputs.messages), inputs(inputs),
        begun(inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE && !given.empty()) {
        this->inputs.edgekv_fit = nullptr;
    }

    // nothing if no repair helps
    std::optional<outcome> repaired() {
        std::vector<repair> tried;
        for (const repair r : all_repairs()) {
            tried.push_back(r);
            if (!changes(tried)) {
                tried.pop_back();
                continue;
            }
            auto result = rendered(tried);
            if (!result.fits()) {
                continue;
            }
            // leaves out what was not needed
            for (size_t i = tried.size() - 1; i-- > 0;) {
                auto fewer = tried;
                fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
                auto with_fewer = rendered(fewer);
                if (with_fewer.fits()) {
                    tried  = std::move(fewer);
                    result = std::move(with_fewer);
                }
            }
            return result;
        }
        return std::nullopt;
    }

    outcome rendered(const std::vector<repair> & repairs) {
        outcome result = rendered(given, repairs);
        if (!result.params) {
            return result;
        }
        auto thinking_ends = result.params->thinking_end_tags;
        thinking_ends.push_back("</think>");
        result.lost = first_not_found(given, result.params->prompt, thinking_ends);
        if (result.lost != ALL_SHOWN) {
            const auto words = marked(given);
            const auto told  = rendered(words, repairs);
            result.lost = told.params ? first_not_shown(words, told.params->prompt) : result.lost;
        }
        return result;
    }

  private:
    using messages_t = std::vector<common_chat_msg>;

    wording with(const messages_t & messages, const std::vector<repair> & repairs) const {
        wording c(begun ? messages_t(messages.begin(), messages.end() - 1) : messages);
        for (const repair r : repairs) {
            r(c);
        }
        return c;
    }

    bool changes(const std::vector<repair> & repairs) const {
        auto before = repairs;
        before.pop_back();
        return with(given, repairs).messages != with(given, before).messages;
    }

    outcome rendered(const messages_t & messages, const std::vector<repair> & repairs) {
        wording c = with(messages, repairs);
        inputs.messages = std::move(c.messages);
        if (begun) {
            inputs.messages.push_back(messages.back());
        }
        outcome result = render(tmpls, inputs);
        if (result.refusal && shorten_ids(inputs.messages)) {
            result = render(tmpls, inputs);
        }
        result.moved = std::move(c.moved);
        return result;
    }

    const templates *                    tmpls;
    const std::vector<common_chat_msg> & given;
    inputs_t                             inputs;
    bool                                 begun;  // the last message stays where it is: the answer goes on with it
};

std::string moves_told(const std::vector<std::string> & moved) {
    const std::string text = string_join({ moved.begin(), moved.begin() + std::min(moved.size(), MOST_MOVED) }, "; ");
    return moved.size() > MOST_MOVED ? text + "; and " + std::to_string(moved.size() - MOST_MOVED) + " more" : text;
}

common_chat_params fit(const templates * tmpls, const inputs_t & asked, json & converted) {
    inputs_t inputs   = asked;
    inputs.edgekv_fit = nullptr;
    fitter  fitting(tmpls, asked);
    outcome as_asked = fitting.rendered({});
    if (as_asked.fits()) {
        return std::move(*as_asked.params);
    }
    common_chat_msg plain;
    plain.role    = "user";
    plain.content = "x";
    if (as_asked.refusal && inputs.continue_final_message == COMMON_CHAT_CONTINUATION_NONE && refused(tmpls, inputs, { plain })) {
        std::rethrow_exception(as_asked.refusal);  // not because of messages
    }
    if (auto found = fitting.repaired()) {
        if (!found->moved.empty()) {
            converted["edgekv_messages"] = moves_told(found->moved);
            SRV_WRN("the chat template cannot take all messages where they stand; moved: %s\n", moves_told(found->moved).c_str());
        }
        return std::move(*found->params);
    }
    const size_t at = as_asked.refusal ? refused_message(tmpls, inputs, asked.messages) : as_asked.lost;
    throw std::invalid_argument("message " + std::to_string(at + 1) + " (" + (at < asked.messages.size() ? asked.messages[at].role : "none") +
                                (as_asked.refusal ? ") is refused by" : ") is left out by") +
                                " the model's chat template, and no place was found for it; leave it out, or start the server with another template, after -- "
                                "as --chat-template-file FILE");
}

// what the model cannot take, as people call it; empty if it can
std::string unreadable(const json & part, const server_chat_params & opt) {
    const std::string type = json_value(part, "type", std::string());
    if (type == "image_url" && !opt.allow_image) {
        return "An image";
    }
    if (type == "input_audio" && !opt.allow_audio) {
        return "Sound";
    }
    return (type == "input_video" || type == "video_url") && !opt.allow_video ? "A video" : "";
}

}  // namespace

void take_messages(json & messages, const server_chat_params & opt) {
    drop_billing_headers(messages);
    size_t newest = messages.size();
    for (size_t i = 0; i < messages.size(); ++i) {
        newest = json_value(messages[i], "role", std::string()) == "user" ? i : newest;
    }
    for (size_t i = 0; i < messages.size(); ++i) {
        mend_calls(messages[i]);
        if (!messages[i].is_object() || !messages[i].contains("content") || !messages[i].at("content").is_array()) {
            continue;
        }
        json & parts = messages[i].at("content");
        for (size_t j = 0; j < parts.size(); ++j) {
            const std::string what = i == newest ? "" : unreadable(parts[j], opt);
            if (!what.empty()) {
                parts[j] = json {{ "type", "text" }, { "text", "[" + what + " was here, which this model cannot take.]" }};
            } else if (json_value(parts[j], "type", std::string()) == "refusal") {
                parts[j] = json {{ "type", "text" }, { "text", json_value(parts[j], "refusal", std::string()) }};
            }
        }
    }
}

std::function<common_chat_params(const templates *, const inputs_t &)> fitting(json & converted) {
    converted["edgekv_messages"] = nullptr;  // the server's own, whatever a client sends
    return [&converted](const templates * tmpls, const inputs_t & inputs) { return fit(tmpls, inputs, converted); };
}

void tell_moved(server_http_res & res, const json & converted) {
    const std::string moved = json_value(converted, "edgekv_messages", std::string());
    if (!moved.empty()) {
        res.headers["X-EdgeKV-Messages"] = moved;
    }
}

std::string call_id() { return random_string().substr(0, 9); }

}  // namespace edgekv_server
