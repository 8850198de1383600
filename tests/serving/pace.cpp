// Checks native/seam/server/pace.*: how many prompt tokens go beside answers, and whose turn it is. Built and run by test_limits.py.
#include "server/pace.h"

#include <cstdio>
#include <cstdlib>
#include <thread>

#define CHECK(x)                                                   \
    if (!(x)) {                                                    \
        std::printf("%s:%d: %s is not so\n", __FILE__, __LINE__, #x); \
        std::exit(1);                                              \
    }

using namespace edgekv_server;

static void decoded(int n_tokens, int n_prompt, double seconds) {
    decode_begins();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    decode_ended(n_tokens, n_prompt);
}

static void test_batches() {
    begin_pace(0);
    CHECK(paced_batch(512, 3) == 512); // no bound
    begin_pace(0.5);
    CHECK(paced_batch(512, 0) == 512); // nobody waits
    CHECK(paced_batch(512, 3) == 3 + 32); // nothing is known
    CHECK(paced_batch(20, 10) == 20);     // no more than fit
    decoded(1, 0, 0.05);
    decoded(101, 100, 0.25); // 2 ms a token beside an answer
    const int n = paced_batch(512, 1) - 1; // (0.9 * 0.5 - 0.05) / 0.002 = 200
    CHECK(n % 16 == 0 && n >= 144 && n <= 192);
    decoded(33, 32, 0.5);
    CHECK(paced_batch(512, 1) < 1 + n); // dearer now
    for (int i = 0; i < 4; ++i) {
        decoded(17, 16, 0.3);
    }
    CHECK(paced_batch(512, 1) == 1 + 16); // never fewer
    const pace_report seen = report();
    CHECK(seen.n_batches == 6 && seen.n_prompt_batch == 16 && seen.max_gap_s == 0.5);
}

static void test_a_few_last_tokens_say_nothing() {
    begin_pace(0.5);
    decoded(4, 3, 0.2);
    CHECK(paced_batch(512, 1) == 1 + 32);
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
    test_batches();
    test_a_few_last_tokens_say_nothing();
    test_gaps();
    test_order();
    test_embeddings_take_turns();
    std::puts("all is well");
}
