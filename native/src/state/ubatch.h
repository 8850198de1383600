// The ubatches of a context, and the run that they add up to.
#pragma once

#include <cstdint>

namespace edgekv {

// which of our nodes attended a ubatch
enum class Attended : uint8_t { none, decode, prompt };

// What a plane is told before a ubatch.
struct UbatchBegin {
    uint64_t number;         // counts ubatches from 1
    int n_tokens;
    bool clear_observation;  // a run begins
    bool anew;               // the mode, or what is observed, has changed: the graph is built anew
};

// What the nodes of a ubatch did.
struct UbatchDone {
    Attended by = Attended::none;
    bool sketched = false;    // all stale groups were built
    int n_last_observed = 0;  // tokens that were observed, if not all were
};

// What the ubatches of a run came to.
struct RunCounts {
    int n_ubatches = 0, n_ubatches_hooked = 0, n_tokens = 0, n_tokens_hooked = 0, n_tokens_observed = 0, n_tokens_prompt = 0;
};

class Ubatches {
public:
    UbatchBegin begin(int n_tokens);  // leaves `anew` to the context
    // ok: the ubatch was computed to its end. prompt: it has tokens of a prompt. observes: every token of a decode is observed. lacks_room: the
    // next ubatch may find no cells.
    void end(bool ok, const UbatchDone & done, bool prompt, bool observes, bool lacks_room);

    void count_runs(int every);  // a run is so many ubatches
    bool run_ended() const { return delivered; }  // the last ubatch ended it
    const RunCounts & run() const { return pending; }

    bool watched = false;  // the ubatch callback comes after each ubatch, not only at the end of a run

private:
    uint64_t number = 0;
    int n_tokens  = 0;
    int run_every = 1;
    RunCounts pending;
    bool observed  = false;  // there may be mass from before
    bool delivered = true;
};

}  // namespace edgekv
