#include "server/http/answers.h"

#include "server/scheduling/limits.h"

#include <algorithm>

namespace edgekv_server {

int n_children(const server_task & task) { return std::min<int>(task.params.n_cmpl, current().n_slots) - 1; }

std::vector<server_task> later_answers(server_task & task, server_response_reader & reader) {
    std::vector<server_task> later;
    const size_t n_together = task.child_tasks.size();
    for (int i = 1 + static_cast<int>(n_together); i < task.params.n_cmpl; ++i) {
        task.add_child(task.id, reader.get_new_id());
        later.push_back(std::move(task.child_tasks.back()));
        task.child_tasks.pop_back();
        server_task & one = later.back();
        one.id_parent = -1;  // it waits for nobody
        if (task.params.sampling.seed != LLAMA_DEFAULT_SEED) {
            one.params.sampling.seed = task.params.sampling.seed + static_cast<uint32_t>(i);
        }
    }
    return later;
}

void add_usage(json & answers, const json & request) {
    const json & n      = request.contains("n_cmpl") ? request.at("n_cmpl") : request.value("n", json(1));
    const size_t n_each = n.is_number_integer() ? std::max<size_t>(1, n.get<size_t>()) : 1;
    int64_t n_read = 0, n_written = 0, n_cached = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
        const json & of = answers[i].at("usage");
        n_written += of.at("completion_tokens").get<int64_t>();
        if (i % n_each == 0) {
            n_read   += of.at("prompt_tokens").get<int64_t>();
            n_cached += of.at("prompt_tokens_details").at("cached_tokens").get<int64_t>();
        }
    }
    json & usage = answers[0].at("usage");
    usage["prompt_tokens_details"]["cached_tokens"] = n_cached;
    usage["prompt_tokens"]     = n_read;
    usage["completion_tokens"] = n_written;
    usage["total_tokens"]      = n_read + n_written;
}

bool echoes(const server_task & task) {
    return task.type == SERVER_TASK_TYPE_COMPLETION && task.params.res_type == TASK_RESPONSE_TYPE_OAI_CMPL && task.params.chat_parser_params.echo;
}

bool scores_prompt(const server_task & task) { return echoes(task) && task.params.sampling.n_probs > 0; }

bool scores_enough(const server_task & task, int n, const common_params & params) {
    return scores_prompt(task) && n >= std::max(1, params.n_outputs_max / params.n_parallel);
}

std::vector<std::string> pieces_of(const server_tokens & tokens, const llama_vocab * vocab) {
    std::vector<std::string> pieces;
    llama_tokens             given;
    std::string              joined;
    const bool has_beginning = tokens.size() > 0 && llama_vocab_get_add_bos(vocab) && tokens[0] == llama_vocab_bos(vocab);
    for (size_t i = 0; i < tokens.size(); ++i) {
        const bool is_text = tokens[i] != LLAMA_TOKEN_NULL && (i > 0 || !has_beginning);
        pieces.push_back(is_text ? common_token_to_piece(vocab, tokens[i], true) : "");
        joined += pieces.back();
        if (is_text) {
            given.push_back(tokens[i]);
        }
    }
    const size_t first = has_beginning;
    if (pieces.size() > first && joined == " " + common_detokenize(vocab, given, true)) {
        pieces[first].erase(0, 1);  // the tokeniser put a space before the text
    }
    return pieces;
}

}  // namespace edgekv_server
