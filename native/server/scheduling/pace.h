// The pace of prompts: the number of prompt tokens in a batch beside running answers, which must not wait too long, and the order
// of prompts. Only the decoding thread calls these functions, except reading_s() and report().
#pragma once

#include "edgekv_server.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace edgekv_server {

void begin_pace(double max_gap_s);

// Sets the clock that times batches from now on; the default is steady_clock. Tests set their own.
using pace_clock = std::chrono::steady_clock::time_point (*)();
void set_pace_clock(pace_clock now);

// a prompt in part unread: the tokens left, and the tokens before them
struct waiting_prompt {
    int64_t left, depth;
};

// The number of tokens that the batch may have, at most `n_batch`. `n_answers` of them are the next tokens of running answers; the others
// come from `prompts`, in this order.
int32_t paced_batch(int32_t n_batch, int32_t n_answers, const std::vector<waiting_prompt> & prompts);

// prompt tokens of a batch
struct prompt_tokens {
    int32_t n         = 0;
    int64_t positions = 0;  // sum of their positions
};

// These stand around the decoding of a batch. Between them, decode_waits() says that the batch also waits for kept rows: its time is then not
// the cost of its tokens.
void decode_begins();
void decode_waits();
void decode_ended(int32_t n_tokens, const prompt_tokens & read);

// counts the prompt tokens among the batch's n tokens from `first` on
template <typename Tokens>
void decode_ended(const Tokens & tokens, int first, int n) {
    prompt_tokens read;
    for (int i = first; i < first + n; ++i) {
        if (tokens[i].is_prompt) {
            read.n++;
            read.positions += tokens[i].pos;
        }
    }
    decode_ended(n, read);
}

// Estimated seconds for n tokens of a prompt after its first `first` tokens, from the newest batches; 0: no batch yet. Any thread.
double reading_s(int64_t first, int64_t n);

// An answer got its n_gen-th token (1 is the first), and the previous one at since_us.
void answer_token(int32_t n_gen, int64_t since_us, int64_t now_us);

// what it knows of these figures: those of answers and batches
edgekv_server_pacing report();

// The number of the next batch that reads prompts, for the functions below. take_turn() returns it and goes on to the next.
uint64_t turn();
uint64_t take_turn();

template <typename Slot>
int64_t tokens_left(const Slot & slot) { return static_cast<int64_t>(slot.task->n_tokens()) - slot.prompt.n_tokens(); }

// The slots in the order in which their prompts enter the batch. The prompt with the fewest tokens left comes first, so a short prompt does
// not wait for a long one. Every fourth time the oldest comes first, so short prompts cannot keep out a long one. embeds: embeddings come
// before all others.
template <typename Slots>
auto reading_order(Slots & slots, uint64_t n_batch, bool embeds = false) {
    using slot = typename Slots::value_type;
    constexpr uint64_t OLDEST_EVERY = 4;

    std::vector<slot *> order;
    for (slot & s : slots) {
        order.push_back(&s);
    }
    const bool oldest = n_batch % OLDEST_EVERY == OLDEST_EVERY - 1;
    std::stable_sort(order.begin(), order.end(), [&](slot * a, slot * b) {
        if (!a->task || !b->task) {
            return a->task && !b->task;
        }
        if (embeds && a->task->need_embd() != b->task->need_embd()) {
            return a->task->need_embd();
        }
        return oldest ? a->task->id < b->task->id : tokens_left(*a) < tokens_left(*b);
    });
    return order;
}

// The prompts being read, in that order. For a prompt that has not begun, the depth is the length of its slot's last conversation.
template <typename Slots>
std::vector<waiting_prompt> waiting_prompts(Slots & slots, uint64_t n_batch, bool embeds) {
    std::vector<waiting_prompt> found;
    for (const auto * s : reading_order(slots, n_batch, embeds)) {
        if (s->task && tokens_left(*s) > 0) {
            found.push_back({tokens_left(*s), s->prompt.n_tokens()});
        }
    }
    return found;
}

// Whether the next batch is for embeddings alone: every second batch, while an embedding waits. An embedding is read whole, so a long one makes
// running answers wait longer than max_gap_s.
template <typename Slots>
bool embeds_now(const Slots & slots, uint64_t n_batch) {
    return n_batch % 2 == 1 && std::any_of(slots.begin(), slots.end(), [](const auto & s) {
        return s.task && s.is_processing() && s.task->need_embd();
    });
}

}  // namespace edgekv_server
