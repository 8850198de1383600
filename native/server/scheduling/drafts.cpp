#include "server/scheduling/drafts.h"

#include <algorithm>
#include <unordered_map>

namespace edgekv_server {
namespace {

bool g_drafts = false;

constexpr int SHORTEST   = 4;   // tokens that must match
constexpr int LONGEST    = 12;  // that must match after wrong guesses
constexpr int MORE_MATCH = 2;   // tokens beyond those that must match: then three are guessed
constexpr int ONE = 1, THREE = 3;

constexpr double NEWEST = 0.1;  // weight of the newest step in a running mean
constexpr double UNUSUAL = 6;   // a step that takes so many times as long waited for something else
constexpr double EARNS   = 0.1; // mean gain of a draft, in plain steps, above which the next pause is a short one
constexpr int    SHORT_PAUSE = 32, LONG_PAUSE = 512;  // steps without drafts where drafts lose

struct slot_drafts {
    int    task   = -1;
    int    needed = SHORTEST;
    double plain_us = 0;  // a step without a draft; 0: none was seen
    double gain_us  = 0;  // time that drafts save, on average
    int    pause    = 0;  // steps left without drafts
    int    next_pause = SHORT_PAUSE;
};

std::unordered_map<int, slot_drafts> & all_slots() {
    static std::unordered_map<int, slot_drafts> slots;
    return slots;
}

}  // namespace

void begin_drafts(bool on) {
    g_drafts = on;
    all_slots().clear();
}

bool drafts_from_text() { return g_drafts; }

std::vector<int32_t> draft_from_text(int slot, int task, const std::vector<int32_t> & said, int32_t newest, int n_most) {
    auto & s = all_slots()[slot];
    if (s.task != task) {
        s.task   = task;
        s.needed = SHORTEST;
    }
    const int n = static_cast<int>(said.size());
    if (n <= SHORTEST || n_most < ONE || s.pause > 0) {
        return {};
    }
    // the latest place before the end where the same tokens stood; `end` is the newest one's place there
    int matched = 0, end = n - 1;
    for (; end >= SHORTEST - 1; --end) {
        if (said[end] == newest && std::equal(said.end() - (SHORTEST - 1), said.end(), said.begin() + end - (SHORTEST - 1))) {
            break;
        }
    }
    if (end < SHORTEST - 1) {
        return {};
    }
    for (matched = SHORTEST; matched < LONGEST + MORE_MATCH && matched <= end && said[n - matched] == said[end - matched]; ++matched) {
    }
    if (matched < s.needed) {
        return {};
    }
    std::vector<int32_t> draft;
    const int n_draft = std::min(n_most, matched - s.needed >= MORE_MATCH ? THREE : ONE);
    for (int i = end + 1; static_cast<int>(draft.size()) < n_draft; ++i) {
        // a text that goes round in a circle is followed by what is guessed
        draft.push_back(i < n ? said[i] : i == n ? newest : draft[i - n - 1]);
    }
    return draft;
}

void step_ended(int slot, int n_gen, int n_drafted, int n_taken, int64_t since_us, int64_t now_us) {
    if (!g_drafts || n_gen == 0) {
        return;  // the first token waited for its prompt
    }
    auto & s = all_slots()[slot];
    const double took = static_cast<double>(now_us - since_us);
    if (n_drafted == 0) {
        s.pause    = std::max(0, s.pause - 1);
        s.plain_us = s.plain_us == 0 ? took : (1 - NEWEST) * s.plain_us + NEWEST * std::min(took, UNUSUAL * s.plain_us);
        return;
    }
    if (n_taken == 0) {
        s.needed = std::min(LONGEST, s.needed + 1);
    } else if (n_taken == n_drafted) {
        s.needed = std::max(SHORTEST, s.needed - 1);
    }
    if (s.plain_us == 0) {
        return;
    }
    s.gain_us = (1 - NEWEST) * s.gain_us + NEWEST * ((1 + n_taken) * s.plain_us - std::min(took, UNUSUAL * s.plain_us));
    if (s.gain_us < 0) {
        s.pause      = s.next_pause;
        s.next_pause = std::min(LONG_PAUSE, 2 * s.next_pause);
        s.gain_us    = 0;
    } else if (s.gain_us > EARNS * s.plain_us) {
        s.next_pause = SHORT_PAUSE;
    }
}

}  // namespace edgekv_server
