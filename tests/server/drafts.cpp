// Checks native/server/scheduling/drafts.*: what is guessed, how far, and when no more. Built and run by test_drafting.py.
#include "check.h"
#include "server/scheduling/drafts.h"

#include <vector>

using namespace edgekv_server;
using tokens = std::vector<int32_t>;

static int slot = 0;  // each test has its own

static tokens guess(const tokens & said, int32_t newest, int n_most = 100, int task = 1) {
    return draft_from_text(slot, task, said, newest, n_most);
}

static void step(int n_drafted, int n_taken, int64_t us) { step_ended(slot, 1, n_drafted, n_taken, 1000, 1000 + us); }

static const tokens SAID = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5 };

static void test_lengths() {
    slot++;
    CHECK(guess(SAID, 6) == (tokens{ 7, 8, 9 }));                              // six tokens match
    CHECK(guess({ 1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4 }, 5) == tokens{ 6 });     // four do
    CHECK(guess({ 1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 4 }, 5).empty());
    CHECK(guess(SAID, 7).empty() && guess({ 1, 2 }, 3).empty() && guess({}, 1).empty());
    CHECK(guess(SAID, 6, 2) == (tokens{ 7, 8 }) && guess(SAID, 6, 0).empty());  // no more than there is room for
    CHECK(guess({ 1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 1, 2, 3 }, 4) == tokens{ 6 });  // the latest place
    CHECK(guess({ 8, 8, 8, 8, 8, 8 }, 8) == (tokens{ 8, 8, 8 }));               // a circle goes on behind its end
    CHECK(guess({ 1, 2, 1, 2, 1, 2, 1 }, 2) == (tokens{ 1, 2, 1 }));
}

static void test_wrong_guesses_ask_for_longer_matches() {
    slot++;
    CHECK(guess(SAID, 6).size() == 3);
    step(3, 0, 1);
    CHECK(guess(SAID, 6) == tokens{ 7 });
    step(1, 0, 1);
    step(1, 0, 1);
    CHECK(guess(SAID, 6).empty());
    step(1, 1, 1);  // a right one
    CHECK(guess(SAID, 6) == tokens{ 7 });
    CHECK(guess(SAID, 6, 100, 2) == (tokens{ 7, 8, 9 }));  // another answer
}

static void test_drafts_pause_where_they_lose() {
    slot++;
    step(0, 0, 100);
    step(3, 3, 200);  // four tokens in the time of two
    CHECK(!guess(SAID, 6).empty());
    slot++;
    step(0, 0, 100);
    step(3, 1, 300);  // two in the time of three
    CHECK(guess(SAID, 6).empty());
    for (int i = 0; i < 32; ++i) {
        CHECK(guess(SAID, 6).empty());
        step(0, 0, 100);
    }
    CHECK(!guess(SAID, 6).empty());
    step(3, 1, 300);
    for (int i = 0; i < 63; ++i) {
        step(0, 0, 100);
    }
    CHECK(guess(SAID, 6).empty());  // the second pause is longer
    step(0, 0, 100);
    CHECK(!guess(SAID, 6).empty());
}

static void test_the_first_token_waited_for_its_prompt() {
    slot++;
    step_ended(slot, 0, 0, 0, 1000, 1000000);
    step(0, 0, 100);
    step(3, 1, 300);
    CHECK(guess(SAID, 6).empty());
}

int main() {
    CHECK(!drafts_from_text());
    begin_drafts(true);
    CHECK(drafts_from_text());
    test_lengths();
    test_wrong_guesses_ask_for_longer_matches();
    test_drafts_pause_where_they_lose();
    test_the_first_token_waited_for_its_prompt();
    return 0;
}
