// Several answers to one prompt, `n` of a request: as many at once as there are slots, then each from the first slot that is free. A completion that
// begins with its prompt, `echo`, and what the model expected in each of its places, where `logprobs` asks for that; and answers of no tokens.
#pragma once

#include "server-queue.h"
#include "server-task.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace edgekv_server {

constexpr int kMostAnswers = 128;  // of a request

// The answers that begin together with `task`, which all wait until there are slots for them.
int n_children(const server_task & task);

// The tasks of the answers that are neither `task` nor its children. Each has a seed of its own if the request gives one.
std::vector<server_task> later_answers(server_task & task, server_response_reader & reader);

// The first answer's usage becomes that of all. `answers`: `n` of the request to its first prompt, then as many to the second, and so on.
void add_usage(json & answers, const json & request);

// All that follows is for the decoding thread.

bool echoes(const server_task & task);

// whether each token of the prompt needs its logits
bool scores_prompt(const server_task & task);

// Whether `n` tokens of a prompt that is scored are as many as its slot may have logits of at once: there are as many as one step of all answers needs.
bool scores_enough(const server_task & task, int n, const common_params & params);

// The text of each token of a prompt; together they are the prompt as it was given, without what the tokeniser adds.
std::vector<std::string> pieces_of(const server_tokens & tokens, const llama_vocab * vocab);

// After a decode of the batch's tokens [off, off + n): what was expected behind each token of a prompt that is to be scored. The first token has no
// probability. fill(slot, token, i): sets the probabilities of a token by the logits of the i-th that was decoded.
template <class Slots, class Batch, class Fill>
void score_prompts(Slots & slots, const Batch & batch, int off, int n, Fill && fill) {
    for (int i = off; i < off + n; ++i) {
        const auto & token = batch.tokens[i];
        auto &       slot  = slots[token.id_slot];
        if (!token.is_prompt || !slot.task || !scores_prompt(*slot.task)) {
            continue;
        }
        auto &       scored = slot.generated_token_probs;
        const auto & prompt = slot.task->tokens;
        const float  none   = std::numeric_limits<float>::quiet_NaN();
        completion_token_output next;
        if (scored.empty()) {
            next.tok  = prompt[0];
            next.prob = none;
            next.probs.push_back({ prompt[0], "", none });
            scored.push_back(next);
            next.probs.clear();
        }
        if (scored.size() < prompt.size()) {
            next.tok = prompt[scored.size()];
            fill(slot, next, i - off);
            scored.push_back(std::move(next));
        }
    }
}

// An answer whose prompt was read begins with it. send(token): sends a piece of a stream.
template <class Slot, class Send>
void begin_with_prompt(Slot & slot, const llama_vocab * vocab, Send && send) {
    if (!echoes(*slot.task)) {
        return;
    }
    const auto pieces = pieces_of(slot.task->tokens, vocab);
    auto &     scored = slot.generated_token_probs;
    std::string & text = slot.generated_text;
    for (size_t i = 0; i < pieces.size(); ++i) {
        text += pieces[i];
        completion_token_output begun;
        completion_token_output & token = i < scored.size() ? scored[i] : begun;
        token.text_to_send = pieces[i];
        if (slot.task->params.stream && (!scored.empty() || i + 1 == pieces.size())) {
            completion_token_output sent = token;  // whole characters
            const size_t end  = i + 1 == pieces.size() ? text.size() : validate_utf8(text);
            sent.text_to_send = text.substr(slot.n_sent_text, end - slot.n_sent_text);
            slot.n_sent_text  = end;
            send(sent);
        }
    }
    slot.n_sent_text = text.size();
}

// Whether an answer whose prompt was read may have no token; its slot is then at its end. begin(): sends what a stream begins with.
template <class Slot, class Begin>
bool ends_at_once(Slot & slot, Begin && begin) {
    if (slot.n_predict_max != 0) {
        return false;
    }
    slot.stats.update_prompt_last();
    if (slot.task->params.stream && slot.task->params.res_type != TASK_RESPONSE_TYPE_NONE) {
        slot.stats.n_gen = 1;  // by which a stream's first piece is known
        begin();
        slot.stats.n_gen = 0;
    }
    slot.stop           = STOP_TYPE_LIMIT;
    slot.has_next_token = false;
    slot.i_batch        = -1;
    return true;
}

}  // namespace edgekv_server
