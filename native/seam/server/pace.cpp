#include "server/pace.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>

namespace edgekv_server {

namespace {

constexpr int32_t PROMPT_STEP         = 16;  // prompt tokens come in multiples of it, and so many always
constexpr int32_t FIRST_PROMPT        = 32;  // before anything was measured
constexpr double  GAP_ROOM         = 0.9; // of the bound; sampling and sending take time too, and times vary
constexpr double  NEWEST_BATCH = 0.5; // of the running means: a prompt's tokens get dearer as it gets longer

struct pace_state {
    std::mutex  mutex; // of `seen`
    pace_report seen;

    double            max_gap_s = 0;
    double            answers_s = 0; // of a batch without prompt tokens
    double            prompt_s  = 0; // of one prompt token beside that; 0: not known
    std::chrono::steady_clock::time_point began;
};

pace_state & the_pace() {
    static pace_state s;
    return s;
}

void learn_time(double & mean, double value) {
    mean = mean == 0 ? value : mean + NEWEST_BATCH * (value - mean);
}

} // namespace

void begin_pace(double max_gap_s) {
    auto & s = the_pace();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.seen           = {};
    s.seen.max_gap_s = s.max_gap_s = max_gap_s;
    s.answers_s = s.prompt_s = 0;
}

int32_t paced_batch(int32_t n_batch, int32_t n_answers) {
    auto & s = the_pace();
    if (s.max_gap_s <= 0 || n_answers == 0) {
        return n_batch;
    }
    int32_t n_prompt = FIRST_PROMPT;
    if (s.prompt_s > 0) {
        const double room = std::max(0.0, GAP_ROOM * s.max_gap_s - s.answers_s) / s.prompt_s;
        n_prompt = std::max(PROMPT_STEP, int32_t(std::min<double>(room, n_batch)) / PROMPT_STEP * PROMPT_STEP);
    }
    n_prompt = std::min(n_prompt, n_batch - n_answers);

    std::lock_guard<std::mutex> lock(s.mutex);
    s.seen.n_prompt_batch = n_prompt;
    return n_answers + n_prompt;
}

void decode_begins() {
    the_pace().began = std::chrono::steady_clock::now();
}

void decode_ended(int32_t n_tokens, int32_t n_prompt) {
    auto & s = the_pace();
    const double took_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - s.began).count();
    if (n_prompt == 0) {
        learn_time(s.answers_s, took_s);
        return;
    }
    // a prompt's last batch may be a few tokens, which say little about what one costs
    if (n_prompt >= PROMPT_STEP) {
        const double beside_s = n_tokens > n_prompt ? s.answers_s : 0;
        learn_time(s.prompt_s, std::max(took_s - beside_s, took_s / 2) / n_prompt);
    }
    if (n_tokens > n_prompt) {
        std::lock_guard<std::mutex> lock(s.mutex);
        s.seen.n_batches++;
    }
}

void answer_token(int32_t n_gen, int64_t since_us, int64_t now_us) {
    if (n_gen < 2) {
        return;
    }
    auto & s = the_pace();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.seen.last_gap_s  = double(now_us - since_us) * 1e-6;
    s.seen.worst_gap_s = std::max(s.seen.worst_gap_s, s.seen.last_gap_s);
}

pace_report report() {
    auto & s = the_pace();
    std::lock_guard<std::mutex> lock(s.mutex);
    return s.seen;
}

} // namespace edgekv_server
