#include "server/scheduling/pace.h"

#include <algorithm>
#include <chrono>
#include <mutex>

namespace edgekv_server {
namespace {

constexpr int32_t PROMPT_STEP  = 16;  // prompt tokens come in multiples of it, at least one
constexpr int32_t FIRST_PROMPT = 32;  // prompt tokens before any measurement
constexpr double  GAP_ROOM     = 0.7;  // part of the bound; the rest is for sampling, sending and variation
constexpr double  FIRST_BESIDE = 2.0/3;  // part of the room for the first batch beside answers: a token cost less in the longer batches before
constexpr double  NEWEST_BATCH = 0.5;  // weight of the newest batch in running means
constexpr double  KEPT_BATCHES = 0.97;  // factor of a batch's weight with each newer one: the line needs tokens of many depths
constexpr double  LEAST_SPREAD = 256;  // positions; a smaller spread cannot tell a slope from noise
constexpr double  USUAL_DEPTH  = 4096;  // until the slope is known, a token is assumed to cost twice as much here as at the beginning

// The cost of a prompt token beside answers: a line over its position, fitted to many batches by least squares, times a level from the newest
// batches. The machine's speed may change between batches; the growth of cost with depth does not.
struct token_cost {
    double n = 0, x = 0, y = 0, xx = 0, xy = 0;  // sums of: 1, positions, seconds, and their products
    double level = 1;

    void learn(double position, double seconds) {
        if (n > 0) {
            level += NEWEST_BATCH * (seconds / line(position) - level);
            seconds /= level;  // the line stands for the usual speed
        }
        for (double * sum : {&n, &x, &y, &xx, &xy}) {
            *sum *= KEPT_BATCHES;
        }
        n += 1;
        x += position;
        y += seconds;
        xx += position * position;
        xy += position * seconds;
    }

    double at(double position) const { return level * line(position); }

    double line(double position) const {
        const double mean_x = x / n, mean = y / n, spread = xx / n - mean_x * mean_x;
        const double slope = spread < LEAST_SPREAD * LEAST_SPREAD ? mean / (USUAL_DEPTH + mean_x) : std::max(0.0, (xy / n - mean_x * mean) / spread);
        return std::max(mean / 4, mean + slope * (position - mean_x));
    }
};

struct pace_state {
    std::mutex  mutex;  // guards `seen`, and `prompt` when it changes or other threads read it
    edgekv_server_pacing seen = {};

    double     answers_s = 0;  // mean time of a batch without prompt tokens
    token_cost prompt;
    bool       beside = false;  // the newest batch with prompt tokens had answers in it
    bool       waits  = false;  // the newest batch waited for kept rows
    uint64_t   turn   = 0;
    pace_clock now    = std::chrono::steady_clock::now;
    std::chrono::steady_clock::time_point began, ended;  // of the newest batch
};

pace_state & the_pace() {
    static pace_state s;
    return s;
}

void learn_time(double & mean, double value) { mean = mean == 0 ? value : mean + NEWEST_BATCH * (value - mean); }

}  // namespace

void begin_pace(double max_gap_s) {
    auto & s = the_pace();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.seen           = {};
    s.seen.max_gap_s = max_gap_s;
    s.answers_s      = 0;
    s.prompt         = {};
    s.beside         = false;
    s.turn           = 0;
}

void set_pace_clock(pace_clock now) { the_pace().now = now; }

int32_t paced_batch(int32_t n_batch, int32_t n_answers, const std::vector<waiting_prompt> & prompts) {
    auto & s = the_pace();
    if (s.seen.max_gap_s <= 0 || n_answers == 0) {
        return n_batch;
    }
    int32_t n_prompt = FIRST_PROMPT;
    if (s.prompt.n > 0) {
        // keeping the rows of a prompt just read has already taken some time
        const double since_s = std::chrono::duration<double>(s.now() - s.ended).count();
        double room = std::max(0.0, GAP_ROOM * s.seen.max_gap_s - s.answers_s - since_s) * (s.beside ? 1 : FIRST_BESIDE);
        double fits = 0, cost = s.prompt.at(0);
        for (const auto & prompt : prompts) {
            cost = s.prompt.at(static_cast<double>(prompt.depth));
            const double some = std::min(static_cast<double>(prompt.left), room / cost);
            fits += some;
            room -= some * cost;
        }
        fits += room / cost;  // all prompts end: the rest of the room
        n_prompt = std::max(PROMPT_STEP, static_cast<int32_t>(std::min<double>(fits, n_batch)) / PROMPT_STEP * PROMPT_STEP);
    }
    n_prompt = std::min(n_prompt, n_batch - n_answers);

    std::lock_guard<std::mutex> lock(s.mutex);
    s.seen.n_prompt_batch = n_prompt;
    return n_answers + n_prompt;
}

void decode_begins() {
    the_pace().waits = false;
    the_pace().began = the_pace().now();
}

void decode_waits() { the_pace().waits = true; }

void decode_ended(int32_t n_tokens, const prompt_tokens & read) {
    auto & s = the_pace();
    s.ended = s.now();
    const double took_s = std::chrono::duration<double>(s.ended - s.began).count();
    if (read.n == 0) {
        learn_time(s.answers_s, took_s);
        return;
    }
    s.beside = n_tokens > read.n;
    // a prompt's last batch may have few tokens, which say little about the cost of one
    if (read.n >= PROMPT_STEP && !s.waits) {
        const double beside_s = s.beside ? s.answers_s : 0;
        std::lock_guard<std::mutex> lock(s.mutex);
        s.prompt.learn(static_cast<double>(read.positions) / read.n, std::max(took_s - beside_s, took_s / 2) / read.n);
    }
    if (s.beside) {
        std::lock_guard<std::mutex> lock(s.mutex);
        s.seen.n_mixed++;
    }
}

uint64_t turn() { return the_pace().turn; }

uint64_t take_turn() { return the_pace().turn++; }

double reading_s(int64_t first, int64_t n) {
    auto & s = the_pace();
    std::lock_guard<std::mutex> lock(s.mutex);
    return s.prompt.n > 0 ? static_cast<double>(n) * s.prompt.at(static_cast<double>(first) + static_cast<double>(n) / 2) : 0;
}

void answer_token(int32_t n_gen, int64_t since_us, int64_t now_us) {
    if (n_gen < 2) {
        return;
    }
    auto & s = the_pace();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.seen.last_gap_s  = static_cast<double>(now_us - since_us) * 1e-6;
    s.seen.worst_gap_s = std::max(s.seen.worst_gap_s, s.seen.last_gap_s);
}

edgekv_server_pacing report() {
    auto & s = the_pace();
    std::lock_guard<std::mutex> lock(s.mutex);
    return s.seen;
}

}  // namespace edgekv_server
