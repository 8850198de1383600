#include "server/scheduling/requests.h"

#include "server/http/adapters.h"
#include "server/http/fields.h"
#include "server/prefix_cache/marks.h"
#include "server/prefix_cache/media.h"
#include "server/prefix_cache/rolling.h"
#include "server/scheduling/limits.h"

#include <stdexcept>
#include <typeinfo>

namespace edgekv_server {

std::string checked_key(const std::vector<std::string> & keys, const std::string & given) {
    std::string found;
    for (const auto & key : keys) {
        // volatile: every character is compared, also after the first difference
        volatile unsigned char differs = key.size() == given.size() ? 0 : 1;
        for (size_t i = 0; i < given.size(); ++i) {
            differs = differs | static_cast<unsigned char>(given[i] ^ key[key.empty() ? 0 : i % key.size()]);
        }
        if (!differs) {
            found = key;
        }
    }
    return found;
}

bool refuses(const void * reader, server_http_res & res) {
    const std::string why = take_place(reader);
    if (why.empty()) {
        return false;
    }
    answer_error(res, why, ERROR_TYPE_UNAVAILABLE);
    res.headers["Retry-After"] = std::to_string(retry_after_s());
    return true;
}

void take_task(server_task & task, const json & body, const server_chat_params & chat, int n_ctx, size_t n_adapters, const llama_vocab * vocab) {
    check_media(task.tokens);
    check_adapters(task.params.lora, n_adapters);
    task.params.message_spans = message_spans(task.params.message_spans, task.tokens, body, chat, vocab);
    roll_prompt(task, n_ctx, body);
    mark_prompt(task.id, task.tokens, body, vocab);
}

server_task_result_ptr stopping_answer() {
    auto error      = std::make_unique<server_task_result_error>();
    error->err_type = ERROR_TYPE_UNAVAILABLE;
    error->err_msg  = STOPPING;
    return error;
}

error_type fault(const std::exception & e) {
    if (std::string(e.what()).find("type_error.316") != std::string::npos) {
        return ERROR_TYPE_SERVER;  // the server wrote text that is not UTF-8
    }
    const bool theirs = dynamic_cast<const common_json_error *>(&e) != nullptr || dynamic_cast<const std::logic_error *>(&e) != nullptr ||
                        typeid(e) == typeid(std::runtime_error);
    return theirs ? ERROR_TYPE_INVALID_REQUEST : ERROR_TYPE_SERVER;
}

void say_too_long(server_task_result & result, task_response_type dialect) {
    auto * error = dynamic_cast<server_task_result_error *>(&result);
    if (error != nullptr && dialect == TASK_RESPONSE_TYPE_OAI_EMBD && error->n_ctx > 0 && error->n_prompt_tokens > error->n_ctx) {
        error->err_type = ERROR_TYPE_EXCEED_CONTEXT_SIZE;  // upstream speaks of its batch
    }
    if (error == nullptr || error->err_type != ERROR_TYPE_EXCEED_CONTEXT_SIZE) {
        return;
    }
    const std::string n = std::to_string(error->n_prompt_tokens), most = std::to_string(error->n_ctx);
    const std::string advice = "; shorten it, or start the server with a longer context: --ctx TOKENS";
    switch (dialect) {
        case TASK_RESPONSE_TYPE_ANTHROPIC:
            error->err_msg  = "prompt is too long: " + n + " tokens > " + most + " maximum" + advice;
            error->err_type = ERROR_TYPE_INVALID_REQUEST;  // as Anthropic's API has it
            break;
        case TASK_RESPONSE_TYPE_OAI_RESP:
            error->err_msg = "Your input exceeds the context window of this model: " + n + " tokens > " + most + " maximum" + advice;
            break;
        case TASK_RESPONSE_TYPE_OAI_CHAT:
        case TASK_RESPONSE_TYPE_OAI_CMPL:
            error->err_msg = "This model's maximum context length is " + most + " tokens. However, your messages resulted in " + n + " tokens" + advice;
            break;
        default:
            error->err_msg = "request (" + n + " tokens) exceeds the available context size (" + most + " tokens)" + advice;
    }
}

std::string plain(std::string sentence) {
    static const std::string LIBRARY = "[json.exception.", KEY = "key '", NOT_FOUND = "' not found";
    for (size_t at; (at = sentence.find(LIBRARY)) != std::string::npos;) {
        const size_t end = sentence.find("] ", at);
        sentence.erase(at, end == std::string::npos ? LIBRARY.size() : end + 2 - at);
    }
    const size_t key = sentence.find(KEY), behind = sentence.find(NOT_FOUND, key);
    if (key != std::string::npos && behind != std::string::npos) {
        sentence.replace(behind, NOT_FOUND.size(), "' is missing");
        sentence.replace(key, KEY.size(), "the field '");
    }
    return sentence;
}

std::string error_body(const json & error) {
    json told = error;
    told["message"] = plain(json_value(error, "message", std::string()));
    if (json_value(error, "type", std::string()) == "exceed_context_size_error") {
        told["code"]  = "context_length_exceeded";
        told["param"] = "messages";
    }
    return safe_json_to_str({{ "error", told }});
}

void answer_error(server_http_res & res, const std::string & sentence, error_type type) {
    const json error = format_error_response(sentence, type);
    res.status = json_value(error, "code", 500);
    res.data   = error_body(error);
}

}  // namespace edgekv_server
