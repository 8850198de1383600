#include "server/chat/unread.h"

#include "chat-peg-parser.h"
#include "chat.h"
#include "log.h"
#include "server-task.h"

#include <algorithm>
#include <optional>

namespace edgekv_server {
namespace {

struct reading {
    common_chat_msg msg;
    size_t          end      = 0;  // the characters of the text behind what the message has of it
    size_t          old_end  = 0;  // the same without the last call
    bool            complete = false;  // nothing need follow
};

// The message of a text, or nothing if no text that begins so can be read.
std::optional<reading> reading_of(const common_chat_parser_params & params, const std::string & text) {
    const std::string        input = params.generation_prompt + text;
    common_peg_parse_context context(input, COMMON_PEG_PARSE_FLAG_LENIENT);
    reading                  found;
    if (!params.parser.empty()) {
        const auto result = params.parser.parse(context);
        if (result.fail()) {
            return std::nullopt;
        }
        size_t end = 0, old_end = 0;
        context.ast.visit(result, [&](const common_peg_ast_node & node) {
            if (node.tag.empty() && (node.rule.empty() || node.is_partial)) {
                return;
            }
            if (node.tag == common_chat_peg_builder::TOOL) {
                old_end = end;
            }
            end = std::max(end, node.end);
        });
        found.complete      = result.success();
        const size_t prompt = params.generation_prompt.size();
        found.end     = std::max(end, prompt) - prompt;
        found.old_end = std::max(old_end, prompt) - prompt;
    } else {
        found.end = found.old_end = text.size();
    }
    try {
        found.msg = common_chat_parse(text, true, params);
    } catch (const std::exception &) {
        return std::nullopt;
    }
    return found;
}

// The reading of the longest beginning that can be read: what fails once fails with every longer text.
reading longest_reading(const common_chat_parser_params & params, const std::string & text) {
    reading best;
    size_t  low = 0, high = text.size();  // `low` characters can be read, `high` cannot
    while (low + 1 < high) {
        const size_t middle = low + (high - low) / 2;
        if (auto found = reading_of(params, text.substr(0, middle))) {
            best = std::move(*found);
            low  = middle;
        } else {
            high = middle;
        }
    }
    constexpr size_t LONGEST_MARK = 256;
    for (size_t n = low; n > best.end && n + LONGEST_MARK > low; --n) {  // marks that closed what was read
        if (const auto found = reading_of(params, text.substr(0, n)); found && found->complete) {
            best.end = n;
            break;
        }
    }
    return best;
}

// Whether `later` says all that `sent` did.
bool continues(const common_chat_msg & sent, const common_chat_msg & later) {
    if (!string_starts_with(later.reasoning_content, sent.reasoning_content) || !string_starts_with(later.content, sent.content) ||
        later.tool_calls.size() < sent.tool_calls.size()) {
        return false;
    }
    for (size_t i = 0; i < sent.tool_calls.size(); ++i) {
        const auto & now = later.tool_calls[i];
        if (now.name != sent.tool_calls[i].name || !string_starts_with(now.arguments, sent.tool_calls[i].arguments)) {
            return false;
        }
    }
    return true;
}

void keep(const std::string & sent, std::string & read) {
    if (read.size() < sent.size() && sent.compare(0, read.size(), read) == 0) {
        read = sent;
    }
}

// A text behind calls is a block of its own: it opens, comes and closes here, and `result` does not close it again.
json late_block(server_task_result_cmpl_final & result, const task_result_state & state, const std::string & text) {
    const common_chat_msg & msg   = result.oaicompat_msg;
    const size_t            index = (msg.reasoning_content.empty() ? 0 : 1) + (state.text_block_started ? 1 : 0) + msg.tool_calls.size();
    if (!state.text_block_started) {
        result.oaicompat_msg.content.clear();
    }
    const auto event = [&](const char * type, json data) {
        data["type"]  = type;
        data["index"] = index;
        return json {{ "event", type }, { "data", data }};
    };
    return json::array({
        event("content_block_start", {{ "content_block", {{ "type", "text" }, { "text", "" }} }}),
        event("content_block_delta", {{ "delta", {{ "type", "text_delta" }, { "text", text }} }}),
        event("content_block_stop", json::object()),
    });
}

}  // namespace

void keep_sent(const common_chat_msg & sent, common_chat_msg & read) {
    if (read.empty()) {
        return;  // nothing was read, and upstream keeps what was sent
    }
    keep(sent.reasoning_content, read.reasoning_content);
    keep(sent.content, read.content);
    for (size_t i = 0; i < std::min(sent.tool_calls.size(), read.tool_calls.size()); ++i) {
        keep(sent.tool_calls[i].arguments, read.tool_calls[i].arguments);
    }
}

void add_held(const common_chat_parser_params & params, const std::string & text, const common_chat_msg & sent, common_chat_msg & msg) {
    if (msg.empty() && sent.empty()) {
        msg.role    = "assistant";
        msg.content = text;  // such as a call that a limit cut before its name
        return;
    }
    constexpr char NO_MARK = '\1';  // no mark goes on with it
    const auto more = params.parser.empty() ? std::nullopt : reading_of(params, text.substr(0, validate_utf8(text)) + NO_MARK);
    if (!more) {
        return;
    }
    const auto add = [](std::string said, std::string & to) {
        if (!said.empty() && said.back() == NO_MARK) {
            said.pop_back();
            keep(said, to);
        }
    };
    add(more->msg.reasoning_content, msg.reasoning_content);
    add(more->msg.content, msg.content);
}

void take_rest(task_result_state & state, const common_chat_msg & sent, bool is_partial, const std::exception & e,
               std::vector<common_chat_msg_diff> & diffs) {
    diffs.clear();
    state.chat_msg = sent;
    if (is_partial) {
        return;
    }
    reading found = longest_reading(state.chat_parser_params, state.generated_text);
    auto &  calls = found.msg.tool_calls;
    if (calls.size() > sent.tool_calls.size() && json::parse_no_throw(calls.back().arguments).is_discarded()) {
        calls.pop_back();  // a call that does not end is text, unless a part of it was sent
        found.end = found.old_end;
    }
    found.msg.set_tool_call_ids(state.generated_tool_call_ids, gen_tool_call_id);
    if (continues(sent, found.msg)) {
        state.chat_msg = found.msg;
    }
    state.chat_msg.role = "assistant";
    const std::string rest = state.generated_text.substr(std::min(found.end, state.generated_text.size()));
    LOG_WRN("edgekv: the answer does not have the form that the chat template asks for (%s): from character %zu on it came as content\n",
            e.what(), found.end);
    state.chat_msg.content += rest;
    diffs = common_chat_msg_diff::compute_diffs(sent, state.chat_msg);
}

void tell_rest(server_task_result_cmpl_final & result, const task_result_state & state) {
    auto & diffs = result.oaicompat_msg_diffs;
    if (!result.stream || diffs.empty() || (result.res_type != TASK_RESPONSE_TYPE_ANTHROPIC && result.res_type != TASK_RESPONSE_TYPE_OAI_RESP)) {
        return;
    }
    server_task_result_cmpl_partial last;
    last.res_type                = result.res_type;
    last.is_updated              = true;
    last.n_decoded               = 0;  // not the first
    last.thinking_block_started  = state.thinking_block_started;
    last.text_block_started      = state.text_block_started;
    last.anthropic_has_reasoning = !result.oaicompat_msg.reasoning_content.empty();
    last.oai_resp_created        = state.oai_resp_created;
    last.oai_resp_id             = state.oai_resp_id;
    last.oai_resp_reasoning_id   = state.oai_resp_reasoning_id;
    last.oai_resp_message_id     = state.oai_resp_message_id;
    last.oai_resp_fc_id          = state.oai_resp_fc_id;
    std::string late;
    if (result.res_type == TASK_RESPONSE_TYPE_ANTHROPIC && !result.oaicompat_msg.tool_calls.empty()) {
        for (auto & diff : diffs) {
            late += diff.content_delta;
            diff.content_delta.clear();
        }
    }
    last.oaicompat_msg_diffs = std::move(diffs);
    diffs.clear();
    result.edgekv_events = last.to_json();
    if (!late.empty()) {
        for (auto & event : late_block(result, state, late)) {
            result.edgekv_events.push_back(std::move(event));
        }
    }
}

}  // namespace edgekv_server
