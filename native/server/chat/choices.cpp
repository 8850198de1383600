#include "server/chat/choices.h"

#include "server/http/fields.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <stdexcept>
#include <utility>

namespace edgekv_server {
namespace {

[[noreturn]] void refuse(const std::string & sentence) { throw std::invalid_argument("the field 'tool_choice' " + sentence); }

// The names of tools, {"name": ...} or {"function": {"name": ...}}; of those alone that are `strict`, where that is asked for.
std::vector<std::string> names_in(const json & tools, bool strict = false) {
    std::vector<std::string> names;
    for (const auto & tool : tools.is_array() ? tools : json::array()) {
        const json function = json_value(tool, "function", json::object());
        const json & within = function.empty() ? tool : function;
        if (!strict || json_value(within, "strict", false)) {
            names.push_back(json_value(within, "name", std::string()));
        }
    }
    return names;
}

void check_known(const std::vector<std::string> & chosen, const std::vector<std::string> & known) {
    for (const auto & name : chosen) {
        if (std::find(known.begin(), known.end(), name) == known.end()) {
            refuse("names the function '" + name + "'; 'tools' has " + (known.empty() ? "none" : string_join(known, ", ")));
        }
    }
}

// Grammar and parser depend on the messages by what the prompt ends with alone, and that on few of them: these render at once, a long history does not.
// Nothing if the prompt ends differently with them.
std::optional<common_chat_params> of_few_messages(const common_chat_templates * tmpls, common_chat_templates_inputs inputs, const std::string & end) {
    auto & messages = inputs.messages;
    if (inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE || messages.empty()) {
        return std::nullopt;
    }
    std::vector<common_chat_msg> few;
    if (messages[0].role == "system") {  // it may say how to think
        few.push_back(messages[0]);
    }
    const auto last = std::find_if(messages.rbegin(), messages.rend(), [](const common_chat_msg & m) { return m.role == "user"; });
    few.push_back(last == messages.rend() ? messages.back() : *last);
    messages          = std::move(few);
    inputs.edgekv_fit = nullptr;
    try {
        common_chat_params params = common_chat_templates_apply(tmpls, inputs);
        return params.generation_prompt == end ? std::optional(std::move(params)) : std::nullopt;
    } catch (const std::exception &) {
        return std::nullopt;  // the template refuses these few
    }
}

}  // namespace

tool_choice take_tool_choice(json & body, const std::map<std::string, bool> & caps) {
    tool_choice chosen;
    chosen.strict = names_in(json_value(body, "tools", json::array()), true);
    const auto can         = caps.find("supports_tools");
    const bool reads_tools = can != caps.end() && can->second;
    if (!reads_tools && body.contains("tools") && asks(body.at("tools"))) {
        has_no_effect("tools");
    }
    if (!body.contains("tool_choice") || body.at("tool_choice").is_null()) {
        return chosen;
    }
    const json given = body.at("tool_choice");
    if (!given.is_string() && !given.is_object()) {
        refuse("must be \"auto\", \"none\", \"required\", or an object that names a function");
    }
    const auto known = names_in(json_value(body, "tools", json::array()));
    auto       mode  = given.is_string() ? given.get<std::string>() : json_value(given, "type", std::string());
    if (given.is_object() && mode == "function") {
        chosen.names  = names_in(json::array({ given }));
        chosen.single = true;
        mode   = "required";
    } else if (given.is_object() && mode == "allowed_tools") {
        const json inner   = json_value(given, "allowed_tools", json::object());
        const json & allowed = inner.empty() ? given : inner;
        chosen.names = names_in(json_value(allowed, "tools", json::array()));
        mode         = json_value(allowed, "mode", std::string("auto"));
        if (chosen.names.empty()) {
            refuse("allows no tool; name some in 'tools', or choose \"none\"");
        }
    }
    if (mode != "auto" && mode != "none" && mode != "required") {
        refuse("is '" + mode + "'; there are: auto, none, required, function, allowed_tools");
    }
    check_known(chosen.names, known);
    if (mode == "required" && known.empty()) {
        refuse("asks for a call, and there are no 'tools'");
    }
    if (mode == "required" && !reads_tools) {
        refuse("asks for a call, and the model's chat template knows no tools; leave it out, or start the server with a template that does, after -- "
               "as --chat-template-file FILE");
    }
    body["tool_choice"] = mode;
    return chosen;
}

bool may_call(const common_chat_templates_inputs & inputs) { return !inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE; }

common_chat_params of_answer(const common_chat_templates * templates, common_chat_templates_inputs inputs, const std::string & prompt_end) {
    auto few = of_few_messages(templates, inputs, prompt_end);
    return few ? std::move(*few) : common_chat_templates_apply(templates, inputs);
}

void narrow(common_chat_params & params, const tool_choice & choice, common_chat_templates_inputs & inputs, const common_chat_templates * templates) {
    const bool has_schema = may_call(inputs) && !inputs.json_schema.empty();
    if (choice.names.empty() && !has_schema) {
        return;
    }
    auto & tools = inputs.tools;
    if (!choice.names.empty()) {
        tools.erase(std::remove_if(tools.begin(), tools.end(), [&](const auto & tool) {
            return std::find(choice.names.begin(), choice.names.end(), tool.name) == choice.names.end();
        }), tools.end());
    }
    inputs.parallel_tool_calls = inputs.parallel_tool_calls && !choice.single;
    auto without_schema        = inputs;
    without_schema.json_schema = has_schema ? "" : inputs.json_schema;
    std::string prompt = std::move(params.prompt);
    params        = of_answer(templates, std::move(without_schema), params.generation_prompt);
    params.prompt = std::move(prompt);
}

}  // namespace edgekv_server
