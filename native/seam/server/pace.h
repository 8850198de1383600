// How many prompt tokens go into a batch beside the next tokens of running answers, so that these do not wait too long; and in which
// order prompts are read. One thread, the one that decodes, calls all but reading_s() and report().
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

namespace edgekv_server {

void begin_pace(double max_gap_s);

// a prompt that is not read to its end: tokens that are left of it, and those before them
struct waiting_prompt {
    int64_t left, depth;
};

// tokens that the batch may have in all, of the `n_batch` that fit; `n_answers` of them are the next tokens of running answers, the others come
// from `prompts`, in this order
int32_t paced_batch(int32_t n_batch, int32_t n_answers, const std::vector<waiting_prompt> & prompts);

// prompt tokens of a batch
struct prompt_tokens {
    int32_t n         = 0;
    int64_t positions = 0;  // of all of them
};

// around the decoding of a batch; between them: it waits for kept rows too, so that its time does not say what its tokens cost
void decode_begins();
void decode_waits();
void decode_ended(int32_t n_tokens, const prompt_tokens & read);

// of the n tokens of the batch from `first` on
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

// seconds that n tokens of a prompt take behind the first `first`, by what was seen; 0: nothing was. From any thread
double reading_s(int64_t first, int64_t n);

// an answer got a token; `n_gen`, which one (1 is the first), `since_us`, when it got the one before
void answer_token(int32_t n_gen, int64_t since_us, int64_t now_us);

struct pace_report {
    double   max_gap_s      = 0;  // what was asked for; 0: no bound
    double   worst_gap_s    = 0;  // between two tokens of a running answer, since the start
    double   last_gap_s     = 0;
    uint64_t n_batches      = 0;  // with prompt tokens beside running answers
    int32_t  n_prompt_batch = 0;  // prompt tokens that the newest of them was allowed
};

pace_report report();

// The number of the batch that prompts are read into next, for what follows. take_turn() takes it: the one behind it has another.
uint64_t turn();
uint64_t take_turn();

template <typename Slot>
int64_t tokens_left(const Slot & slot) {
    return static_cast<int64_t>(slot.task->n_tokens()) - slot.prompt.n_tokens();
}

// Which slot's prompt goes into the batch first: the one with the fewest tokens left, so that a short prompt does not wait for a long
// one; every fourth time the oldest, so that short ones do not keep a long one out. embeds: before all of them embeddings.
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

// The prompts that are being read, in that order. One that has not begun stands where its slot's last conversation ended.
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

// Whether the next batch is for embeddings alone: every second one, while somebody waits for some. They are read whole, so that a running
// answer waits for them longer than max_gap_s where they are long.
template <typename Slots>
bool embeds_now(const Slots & slots, uint64_t n_batch) {
    return n_batch % 2 == 1 && std::any_of(slots.begin(), slots.end(), [](const auto & s) {
        return s.task && s.is_processing() && s.task->need_embd();
    });
}

}  // namespace edgekv_server
