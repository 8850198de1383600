// Checks native/server/scheduling/pace.*: how many prompt tokens go beside answers, and whose turn it is. Built and run by test_limits.py.
#include "check.h"
#include "server/scheduling/pace.h"

#include <chrono>
#include <cmath>
#include <vector>

using namespace edgekv_server;

using prompts = std::vector<waiting_prompt>;

static const prompts LONG = { { 1000, 0 } };

static std::chrono::steady_clock::time_point t_now;

static void pass(double seconds) {
    t_now += std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

static void decoded(int n_tokens, int n_prompt, double seconds, int64_t position = 0) {
    decode_begins();
    pass(seconds);
    decode_ended(n_tokens, { n_prompt, n_prompt * position });
}

static int beside_one(const prompts & waiting) {
    return paced_batch(1024, 1, waiting) - 1;
}

static void test_batches() {
    begin_pace(0);
    CHECK(paced_batch(512, 3, LONG) == 512); // no bound
    begin_pace(0.5);
    CHECK(paced_batch(512, 0, LONG) == 512); // nobody waits
    CHECK(paced_batch(512, 3, LONG) == 3 + 32); // nothing is known
    CHECK(paced_batch(20, 10, LONG) == 20);     // no more than fit
    decoded(1, 0, 0.05);
    decoded(101, 100, 0.25); // 2 ms a token beside an answer
    const int n = beside_one(LONG); // (0.7 * 0.5 - 0.05) / 0.002 = 150
    CHECK(n % 16 == 0 && n >= 112 && n <= 176);
    decoded(33, 32, 0.5);
    CHECK(beside_one(LONG) < n); // dearer now
    for (int i = 0; i < 4; ++i) {
        decoded(17, 16, 0.3);
    }
    CHECK(beside_one(LONG) == 16); // never fewer
    const edgekv_server_pacing seen = report();
    CHECK(seen.n_mixed == 6 && seen.n_prompt_batch == 16 && seen.max_gap_s == 0.5);
}

static void test_a_few_last_tokens_say_nothing() {
    begin_pace(0.5);
    decoded(4, 3, 0.2);
    CHECK(beside_one(LONG) == 32);
}

static void test_deep_tokens_cost_more() {
    begin_pace(0.5);
    decoded(101, 100, 0.1);
    const int unknown = beside_one({ { 1000, 4096 } }); // twice as much until it is known
    CHECK(unknown >= 144 && unknown <= 176);
    decoded(101, 100, 0.3, 6000);
    const int shallow = beside_one(LONG), deep = beside_one({ { 1000, 6000 } }), both = beside_one({ { 64, 0 }, { 1000, 6000 } });
    CHECK(shallow >= 272 && shallow <= 352 && deep >= 96 && deep <= 112 && both > deep && both <= 64 + deep);
}

static void test_how_long_a_prompt_takes() {
    begin_pace(0);
    CHECK(reading_s(0, 1000) == 0); // nobody knows
    decode_begins();
    decode_waits();
    pass(0.2);
    decode_ended(100, { 100, 0 });
    CHECK(reading_s(0, 1000) == 0); // it waited for something else
    decoded(100, 100, 0.1);
    const double shallow = reading_s(0, 1000), deep = reading_s(4000, 1000);
    CHECK(shallow >= 1 && shallow < 2 && deep > 1.5 * shallow && reading_s(0, 0) == 0);
    CHECK(std::abs(reading_s(0, 2000) - shallow - reading_s(1000, 1000)) < 1e-6);
}

// A prompt of 6,000 tokens, times that vary by 5 %: behind it what the first tokens of the next one cost is still known.
static void test_what_shallow_tokens_cost_is_remembered() {
    begin_pace(0.5);
    int n_batches = 0;
    const auto read = [&](double factor, int from, int to) {
        for (int position = from; position < to; position += 200) {
            decoded(21, 20, factor * (n_batches++ % 2 ? 1.05 : 0.95) * 20 * (0.0013 + 0.00054e-3 * position), position);
        }
    };
    read(1, 0, 6000);
    const int shallow = beside_one(LONG); // 0.35 / 0.0013 = 269
    CHECK(shallow >= 224 && shallow <= 304);
    read(2, 5600, 6000); // the machine does something else besides: seen at once
    CHECK(beside_one(LONG) <= 0.7 * shallow);
}

static void test_the_first_batch_beside_answers_is_shorter() {
    begin_pace(0.5);
    decoded(100, 100, 0.1);
    const int first = beside_one(LONG);
    decoded(101, 100, 0.1);
    CHECK(3 * first < 2 * beside_one(LONG) + 3 * 16);
}

static void test_what_was_spent_before_counts() {
    begin_pace(0.5);
    decoded(101, 100, 0.1);
    const int soon = beside_one(LONG);
    pass(0.2);
    CHECK(beside_one(LONG) <= soon - 160);
}

static void test_gaps() {
    begin_pace(1);
    answer_token(1, 0, 9000000); // the first token follows the prompt
    answer_token(2, 1000000, 1400000);
    answer_token(3, 1400000, 1500000);
    CHECK(report().worst_gap_s > 0.399 && report().worst_gap_s < 0.401 && report().last_gap_s < 0.11);
    begin_pace(1);
    CHECK(report().worst_gap_s == 0);
}

struct held {
    int n;
    int n_tokens() const { return n; }
};
struct job {
    int  id;
    int  n;
    bool embeds = false;
    int  n_tokens() const { return n; }
    bool need_embd() const { return embeds; }
};
struct slot {
    job *  task;
    held   prompt;
    bool is_processing() const { return task != nullptr; }
};

static void test_order() {
    job longest{ 1, 7000 }, shortest{ 3, 50 }, begun{ 2, 900 };
    std::vector<slot> slots = { { &longest, { 0 } }, { nullptr, { 5 } }, { &begun, { 880 } }, { &shortest, { 0 } } };
    for (int i = 0; i < 3; ++i) {
        const auto order = reading_order(slots, i);
        CHECK(order.size() == 4 && order[0]->task == &begun && order[1]->task == &shortest && order[2]->task == &longest && !order[3]->task);
    }
    const prompts waiting = waiting_prompts(slots, 0, false);
    CHECK(waiting.size() == 3 && waiting[0].left == 20 && waiting[0].depth == 880 && waiting[2].left == 7000);
    const auto order = reading_order(slots, 3);
    CHECK(order[0]->task == &longest && order[1]->task == &begun && order[2]->task == &shortest);
}

static void test_embeddings_take_turns() {
    job answer{ 1, 100 }, embedding{ 2, 400, true };
    std::vector<slot> slots = { { &answer, { 90 } }, { nullptr, { 5 } }, { &embedding, { 0 } } };
    CHECK(!embeds_now(slots, 0) && embeds_now(slots, 1) && !embeds_now(slots, 2));
    CHECK(reading_order(slots, 1, true)[0]->task == &embedding && reading_order(slots, 1)[0]->task == &answer);
    slots[2].task = nullptr;
    CHECK(!embeds_now(slots, 1)); // nobody waits for one
}

int main() {
    set_pace_clock([] { return t_now; });
    test_batches();
    test_a_few_last_tokens_say_nothing();
    test_deep_tokens_cost_more();
    test_how_long_a_prompt_takes();
    test_what_shallow_tokens_cost_is_remembered();
    test_the_first_batch_beside_answers_is_shorter();
    test_what_was_spent_before_counts();
    test_gaps();
    test_order();
    test_embeddings_take_turns();
    std::puts("all is well");
}
