#include "server/chat/forms.h"

#include "chat-peg-parser.h"
#include "json-schema-to-grammar.h"

#include <algorithm>
#include <cctype>

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

// `grammar` with another name for its rule root
std::string renamed_root(const std::string & grammar, const std::string & name) {
    const auto is_letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '-'; };
    std::string result;
    for (size_t i = 0, end = 0; i < grammar.size(); i = end) {
        end = i + 1;
        const size_t kind = std::string("\"[<#").find(grammar[i]);
        if (kind != std::string::npos) {  // texts, sets of characters, tokens, comments
            while (end < grammar.size() && grammar[end] != "\"]>\n"[kind]) {
                end += grammar[end] == '\\' && grammar[i] != '#' ? 2 : 1;
            }
            end++;
        } else if (is_letter(grammar[i])) {
            end = std::find_if_not(grammar.begin() + end, grammar.end(), is_letter) - grammar.begin();
        }
        const std::string piece = grammar.substr(i, end - i);
        result += piece == "root" ? name : piece;
    }
    return result;
}

// gpt-oss: `form` holds for the message of the final channel, one of thinking may come before. Upstream's grammar lets thinking follow thinking, and
// a word without an end follow the channel's name; of grammars it knows none.
std::string channels_grammar(const common_chat_params & chat, const std::string & form, bool is_json) {
    constexpr char ROOT[] = "edgekv-answer";
    const auto     parser = build_chat_peg_parser([&](common_chat_peg_builder & p) {
        const auto start   = p.literal("<|start|>assistant");
        const auto end     = p.literal("<|end|>");
        const auto thought = p.literal(chat.thinking_start_tag) + p.until("<|end|>") + end + start;
        const auto type    = is_json ? p.optional(p.literal(" <|constrain|>json")) : p.eps();
        return start + p.optional(thought) + p.literal("<|channel|>final") + type + p.literal("<|message|>") + p.gbnf(p.rest(), ROOT);
    });
    return build_grammar([&](const common_grammar_builder & builder) { parser.build_grammar(builder, false); }) + "\n" + renamed_root(form, ROOT);
}

}  // namespace

void shape_answer(const common_chat_params & chat, const common_chat_templates_inputs & inputs, json & task) {
    const bool has_schema   = !inputs.json_schema.empty();
    const bool has_channels = chat.thinking_start_tag == "<|channel|>analysis<|message|>";
    const bool is_foreign   = chat.grammar.empty() && !has_channels;  // the template's own grammar tells thinking and answer apart
    if (!has_schema && inputs.grammar.empty()) {
        return;
    }
    if (has_channels || (has_schema && is_foreign)) {
        const std::string form = has_schema ? json_schema_to_grammar(json::parse(inputs.json_schema)) : inputs.grammar;
        task["grammar"]        = has_channels ? channels_grammar(chat, form, has_schema) : form;
    }
    if (has_channels) {
        task["grammar_type"] = "tool_calls";  // upstream's word for one that begins with the prompt's end
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
