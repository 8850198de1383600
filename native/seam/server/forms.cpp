#include "server/forms.h"

#include "chat-peg-parser.h"
#include "json-schema-to-grammar.h"

#include <algorithm>

namespace edgekv_server {
namespace {

// Whether the prompt ends within thinking.
bool thinks(const common_chat_params & chat) {
    const std::string & prompt = chat.generation_prompt;
    const size_t        begun  = chat.thinking_start_tag.empty() ? std::string::npos : prompt.rfind(chat.thinking_start_tag);
    return begun != std::string::npos && std::none_of(chat.thinking_end_tags.begin(), chat.thinking_end_tags.end(), [&](const auto & tag) {
        return prompt.find(tag, begun) != std::string::npos;
    });
}

// The thinking up to its end, then content: an answer whose grammar knows no marks of the template.
std::string plain_parser(const common_chat_params & chat) {
    return build_chat_peg_parser([&](common_chat_peg_builder & p) {
        auto end = p.choice();
        for (const auto & tag : chat.thinking_end_tags) {
            end |= p.literal(tag);
        }
        return p.literal(chat.generation_prompt) + p.reasoning(p.until_one_of(chat.thinking_end_tags)) + end + p.space() +
               p.content(p.rest()) + p.end();
    }).save();
}

}  // namespace

void shape_answer(const common_chat_params & chat, const common_chat_templates_inputs & inputs, json & task) {
    const bool has_schema = !inputs.json_schema.empty();
    const bool is_foreign = chat.grammar.empty();  // the template's own grammar tells thinking and answer apart
    if (!has_schema && inputs.grammar.empty()) {
        return;
    }
    if (has_schema && is_foreign) {
        task["grammar"] = json_schema_to_grammar(json::parse(inputs.json_schema));
    }
    if (is_foreign && !thinks(chat)) {
        return;  // it holds from the first token on
    }
    if (is_foreign && inputs.reasoning_format != COMMON_REASONING_FORMAT_NONE) {
        task["chat_parser"] = plain_parser(chat);
    }
    if (!chat.thinking_end_tags.empty()) {
        task["reasoning_control"] = true;  // the sampler follows the thinking, and ends it
    }
}

}  // namespace edgekv_server
