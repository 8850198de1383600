#include "server/chat/forms.h"

#include "llama-edgekv-forms.h"
#include "server/chat/schemas.h"
#include "server/http/fields.h"

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

// Whether an answer may begin with thinking.
bool may_think(const common_chat_params & chat) {
    return !chat.thinking_start_tag.empty() && !chat.thinking_end_tags.empty() && chat.generation_prompt.find(chat.thinking_start_tag) == std::string::npos;
}

// Thinking, if there is any and it is told apart, then content: an answer whose grammar knows no marks of the template.
std::string plain_parser(const common_chat_params & chat, bool tells_thinking) {
    return build_chat_peg_parser([&](common_chat_peg_builder & p) {
        auto thinking = p.eps();
        if (tells_thinking && (thinks(chat) || may_think(chat))) {
            auto end = p.choice();
            for (const auto & tag : chat.thinking_end_tags) {
                end |= p.literal(tag);
            }
            thinking = p.reasoning(p.until_one_of(chat.thinking_end_tags)) + end + p.space();
            thinking = thinks(chat) ? thinking : p.optional(p.literal(chat.thinking_start_tag) + p.space() + thinking);
        }
        return p.literal(chat.generation_prompt) + thinking + p.content(p.rest()) + p.end();
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
std::string channels_grammar(const common_chat_params & chat, const std::string & form) {
    constexpr char ROOT[] = "edgekv-answer";
    const auto     parser = build_chat_peg_parser([&](common_chat_peg_builder & p) {
        const auto start   = p.literal("<|start|>assistant");
        const auto end     = p.literal("<|end|>");
        const auto thought = p.literal(chat.thinking_start_tag) + p.until("<|end|>") + end + start;
        return start + p.optional(thought) + p.literal("<|channel|>final<|message|>") + p.gbnf(p.rest(), ROOT);
    });
    return build_grammar([&](const common_grammar_builder & builder) { parser.build_grammar(builder, false); }) + "\n" + renamed_root(form, ROOT);
}

json final_channel() {
    return json::array({ json::array({ "<|channel|>final", false }), json::array({ " <|constrain|>json", true }), json::array({ "<|message|>", false }) });
}

// What may stand before an answer that a schema holds for: the beginning of the thinking, which the sampler follows to its end, and marks of channels.
json before_answer(const common_chat_params & chat, bool has_channels) {
    json before = json::array();
    if (may_think(chat)) {
        before.push_back(json::array({ chat.thinking_start_tag + (has_channels ? "<|start|>assistant" : ""), true }));
    }
    if (has_channels) {
        for (const auto & mark : final_channel()) {
            before.push_back(mark);
        }
    } else if (!chat.thinking_end_tags.empty()) {
        before.push_back(json::array({ "\n\n", true }));
    }
    return before;
}

// Replaces the template's grammar by a form that the request's field `field` asks for.
void set_form(const std::string & form, const std::string & field, json & task) {
    task["grammar"]      = form;
    task["grammar_lazy"] = false;
    task[ASKED_BY]       = field;
    task.erase("grammar_type");
    task.erase("grammar_triggers");
}

json schema_in(const common_chat_templates_inputs & inputs) {
    const json schema = json::parse(inputs.json_schema);
    return schema.value("schema", schema);
}

// Lets the schema hold for the answer, in the place of the template's grammar.
void hold_schema(const common_chat_params & chat, const common_chat_templates_inputs & inputs, bool has_channels, json & task) {
    const bool        goes_on = inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE && !inputs.messages.empty();
    const std::string begun   = goes_on ? inputs.messages.back().render_content() : "";
    const std::string form    = form_of(schema_in(inputs), begun.empty() ? before_answer(chat, has_channels) : json::array(), begun);
    check_form(form, "response_format");
    set_form(form, "response_format", task);
    if (!has_channels) {
        task["chat_parser"] = plain_parser(chat, inputs.reasoning_format != COMMON_REASONING_FORMAT_NONE);
    }
}

// Refuses a strict tool by its name where calls cannot be held to its schema.
void check_strict(const common_chat_templates_inputs & inputs, const std::vector<std::string> & strict) {
    for (const auto & tool : inputs.tools) {
        if (!tool.parameters.empty() && std::find(strict.begin(), strict.end(), tool.name) != strict.end()) {
            check_form(form_of(json::parse(tool.parameters)), "tools." + tool.name + ".strict");
        }
    }
}

// Schemas of the arguments of calls by the names that upstream's parser has for them: [schema, whether answers that cannot be held to it are refused].
json arguments_of(const common_chat_templates_inputs & inputs, const std::vector<std::string> & strict) {
    json arguments = json::object();
    for (const auto & tool : inputs.tools) {
        const json        schema = json::parse(tool.parameters.empty() ? "{}" : tool.parameters);
        const std::string name   = "tool-" + tool.name;
        const bool is_strict     = std::find(strict.begin(), strict.end(), tool.name) != strict.end();
        arguments[name + "-schema"] = json::array({ schema, is_strict });
        const json properties = schema.value("properties", json::object());
        for (const auto & property : properties.items()) {
            json one = property.value();
            for (const char * place : { "$defs", "definitions" }) {
                if (one.is_object() && schema.contains(place)) {
                    one[place] = schema.at(place);
                }
            }
            arguments[name + "-arg-" + property.key() + "-schema"] = json::array({ one, is_strict });
        }
    }
    return arguments;
}

// Lets the answer be a call, or what the schema asks for where there is one, and nothing else: thinking apart, which the grammar knows.
void hold_calls(const common_chat_params & chat, common_chat_templates_inputs inputs, bool has_channels, const common_chat_templates * templates,
                const std::vector<std::string> & strict, json & task) {
    const bool must_call  = inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    const bool has_schema = !inputs.json_schema.empty();
    const json schema     = must_call || !has_schema ? json() : schema_in(inputs);
    const std::string asking = has_schema ? "response_format" : "tools";
    inputs.json_schema.clear();
    inputs.tool_choice      = COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    inputs.reasoning_format = COMMON_REASONING_FORMAT_AUTO;  // the grammar knows thinking whether or not it is shown apart
    const auto call = of_answer(templates, inputs, chat.generation_prompt);
    if (call.grammar.empty()) {
        decline("the field '" + asking + "' cannot hold for the answer: this model's template has no form for calls; " +
                (has_schema ? "leave the tools or the schema out" : "leave 'strict' out"));
    }
    const json        calls = {{ "parser", call.parser }, { "arguments", arguments_of(inputs, strict) }};
    const std::string form  = form_of(schema, has_channels && has_schema ? final_channel() : json::array(), "", calls);
    set_form(form, asking, task);
    task["grammar_type"] = "tool_calls";  // upstream's word for one that begins with the prompt's end
}

// Lets calls that the model is free to make hold to the tools' schemas, in the place of the template's grammar and where that would: from a trigger on.
void hold_free_calls(const common_chat_params & chat, const common_chat_templates_inputs & inputs, const std::vector<std::string> & strict, json & task) {
    const json calls = {{ "parser", chat.parser }, { "arguments", arguments_of(inputs, strict) }, { "lazy", true }};
    task["grammar"] = form_of(json(), json::array(), "", calls);
    task[ASKED_BY]  = "tools";
}

}  // namespace

void shape_answer(const common_chat_params & chat, const common_chat_templates_inputs & inputs, const common_chat_templates * templates,
                  const tool_choice & choice, json & task) {
    const bool has_schema   = !inputs.json_schema.empty();
    const bool has_channels = chat.thinking_start_tag == "<|channel|>analysis<|message|>";
    const bool is_foreign   = chat.grammar.empty() && !has_channels;  // the template's own grammar tells thinking and answer apart
    const bool is_strict    = !choice.strict.empty() && inputs.grammar.empty();
    const bool must_call    = inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED;
    check_strict(inputs, choice.strict);
    if (may_call(inputs) && (has_schema || (is_strict && must_call))) {
        return hold_calls(chat, inputs, has_channels, templates, choice.strict, task);
    }
    if (may_call(inputs) && is_strict && chat.grammar_lazy) {
        return hold_free_calls(chat, inputs, choice.strict, task);
    }
    if (!has_schema && inputs.grammar.empty()) {
        return;
    }
    if (has_schema) {
        hold_schema(chat, inputs, has_channels, task);
    } else if (has_channels) {
        if (llama_edgekv_is_form(inputs.grammar)) {
            decline("the field 'grammar' must be GBNF here, as this model's answers have channels");
        }
        task["grammar"]      = channels_grammar(chat, inputs.grammar);
        task["grammar_type"] = "tool_calls";  // upstream's word for one that begins with the prompt's end
    } else if (is_foreign && !thinks(chat)) {
        return;  // it holds from the first token on
    } else if (is_foreign && inputs.reasoning_format != COMMON_REASONING_FORMAT_NONE) {
        task["chat_parser"] = plain_parser(chat, true);
    }
    if (!chat.thinking_end_tags.empty()) {
        task["reasoning_control"] = true;  // the sampler follows the thinking, and ends it
    }
}

}  // namespace edgekv_server
