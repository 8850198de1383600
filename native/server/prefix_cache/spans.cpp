#include "server/prefix_cache/spans.h"

#include "server/prefix_cache/cache.h"

#include "chat.h"

#include <algorithm>

namespace edgekv_server {

namespace {

constexpr const char * SPACE = " \t\r\n";

common_chat_msg message(const char * role, const char * content) {
    common_chat_msg m;
    m.role    = role;
    m.content = content;

    return m;
}

// The text that a template puts between an answer and the next user message, without surrounding white space; empty: unknown.
std::string user_marker(const server_chat_params & chat) {
    common_chat_templates_inputs inputs;
    inputs.add_generation_prompt = false;
    inputs.use_jinja             = chat.use_jinja;
    inputs.force_pure_content    = true;
    inputs.chat_template_kwargs  = chat.chat_template_kwargs;
    inputs.messages              = { message("user", "EDGEKV-ONE"), message("assistant", "EDGEKV-TWO") };
    try {
        const auto before = common_chat_templates_apply(chat.tmpls.get(), inputs).prompt;
        inputs.messages.push_back(message("user", "EDGEKV-THREE"));
        const auto all = common_chat_templates_apply(chat.tmpls.get(), inputs).prompt;
        const auto end = all.find("EDGEKV-THREE");
        if (all.compare(0, before.size(), before) != 0 || end == std::string::npos) {
            return {};
        }
        const auto marker = all.substr(before.size(), end - before.size());
        const auto first  = marker.find_first_not_of(SPACE);

        return first == std::string::npos ? std::string() : marker.substr(first, marker.find_last_not_of(SPACE) - first + 1);
    } catch (const std::exception &) {
        return {};  // the template rejects such a conversation
    }
}

// the marker of a server's template, found once
std::string kept_user_marker(const server_chat_params & chat) {
    auto & cache = the_cache();
    const void * const of = chat.tmpls.get();
    std::unique_lock<std::mutex> lock(cache.mutex);
    if (cache.marker_of != of) {
        lock.unlock();
        std::string marker = user_marker(chat);
        lock.lock();
        cache.marker    = std::move(marker);
        cache.marker_of = of;
    }

    return cache.marker;
}

int n_user_spans(const common_chat_msg_spans & spans) {
    return static_cast<int>(std::count_if(spans.spans.begin(), spans.spans.end(), [](const auto & span) { return span.role == COMMON_CHAT_ROLE_USER; }));
}

}  // namespace

bool of_user(const json & message) { return json_value(message, "role", std::string()) == "user"; }

common_chat_msg_spans message_spans(const common_chat_msg_spans & found, const server_tokens & tokens, const json & body,
                                    const server_chat_params & chat, const llama_vocab * vocab) {
    if (!body.contains("messages") || !body.at("messages").is_array() || !chat.tmpls) {
        return found;
    }
    const auto & messages = body.at("messages");
    const int    n_users  = static_cast<int>(std::count_if(messages.begin(), messages.end(), of_user));
    if (n_user_spans(found) == n_users) {
        return found;
    }
    common_chat_msg_delimiters delimiters;
    delimiters.add(COMMON_CHAT_ROLE_USER, kept_user_marker(chat));
    delimiters.tokenize(vocab);
    if (delimiters.delimiters.front().tokens.empty()) {
        return found;
    }
    auto ours = tokens.find_message_spans(delimiters);

    return n_user_spans(ours) == n_users ? ours : found;
}

}  // namespace edgekv_server
