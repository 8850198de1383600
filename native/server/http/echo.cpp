#include "server/http/echo.h"

#include <algorithm>

namespace edgekv_server {

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
