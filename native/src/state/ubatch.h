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
    bool anew;               // its graph is built anew: mode, or what is observed, is another than before
};

// What the nodes of a ubatch did.
struct UbatchDone {
    Attended by = Attended::none;
    bool sketched = false;    // all groups that were to be built
    int n_last_observed = 0;  // tokens that were observed, where not all were
};

// What the ubatches of a run came to.
struct RunCounts {
    int n_ubatches = 0, n_ubatches_hooked = 0, n_tokens = 0, n_tokens_hooked = 0, n_tokens_observed = 0, n_tokens_prompt = 0;
};

class Ubatches {
public:
    UbatchBegin begin(int n_tokens);  // not `anew`
    // After it, ok: it was computed to its end. prompt: it has tokens of one; observes: mass of every token of a decode; lacks_room: the next
    // may find no cells
    void end(bool ok, const UbatchDone & done, bool prompt, bool observes, bool lacks_room);

    void count_runs(int every);  // ubatches
    bool run_ended() const { return delivered; }  // with the ubatch before
    const RunCounts & run() const { return pending; }

    bool watched = false;  // the ubatch callback comes after each, though runs do not

private:
    uint64_t number = 0;
    int n_tokens  = 0;
    int run_every = 1;
    RunCounts pending;
    bool observed  = false;  // there may be mass from before
    bool delivered = true;
};

}  // namespace edgekv
