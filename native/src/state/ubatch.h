// A context's ubatches, and the runs that they form.
#pragma once

#include "edgekv_observation.h"

#include <cstdint>
#include <vector>

namespace edgekv {

// the kind of our nodes that attended a ubatch
enum class Attended : uint8_t { none, decode, prompt };

// A plane gets this before a ubatch.
struct UbatchBegin {
    uint64_t number;         // counts ubatches from 1
    int n_tokens;
    bool clear_observation;  // a run begins
    bool anew;               // the mode or the settings of observation have changed: the graph is rebuilt
};

// The nodes of a ubatch report this.
struct UbatchDone {
    Attended by = Attended::none;
    bool sketched = false;    // all stale groups were built
    int n_last_observed = 0;  // observed tokens, if only the last ones were observed
};

// The counts of a run, summed over its ubatches.
struct RunCounts {
    int n_ubatches = 0, n_ubatches_hooked = 0, n_tokens = 0, n_tokens_hooked = 0, n_tokens_observed = 0, n_tokens_prompt = 0;
    std::vector<edgekv_stream_tokens> streams;  // [stream]; empty: there is one stream
};

class Ubatches {
public:
    // by_stream: [stream] its tokens, not observed yet; empty: there is one. Leaves `anew` to the context.
    UbatchBegin begin(int n_tokens, const std::vector<edgekv_stream_tokens> & by_stream = {});
    // ok: the ubatch was computed completely. prompt: it has tokens of a prompt. observes: decode steps observe every token. lacks_room: the
    // next ubatch may find no cells.
    void end(bool ok, const UbatchDone & done, bool prompt, bool observes, bool lacks_room);

    void count_runs(int every);  // a run has so many ubatches from now on; 0: it does not end
    bool run_ended() const { return delivered; }  // the last ubatch ended the run
    const RunCounts & run() const { return pending; }

    bool watched = false;  // the ubatch callback comes after each ubatch, not only at the end of a run

private:
    void count_streams(int n_observed, bool by_length);

    uint64_t number = 0;
    int n_tokens  = 0;
    std::vector<edgekv_stream_tokens> streams;  // of this ubatch
    int run_every = 1;
    RunCounts pending;
    bool observed  = false;  // the observation may hold mass of earlier ubatches
    bool delivered = true;
};

}  // namespace edgekv
