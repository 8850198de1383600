#include "state/ubatch.h"

#include <algorithm>
#include <cassert>

namespace edgekv {

UbatchBegin Ubatches::begin(int n_tokens_ubatch, const std::vector<edgekv_stream_tokens> & by_stream) {
    assert(n_tokens_ubatch > 0);
    n_tokens = n_tokens_ubatch;
    streams  = by_stream;
    number  += 1;

    bool clear = false;
    if (delivered) {
        clear     = observed;
        observed  = false;
        pending   = {};
        delivered = false;
    }
    return { number, n_tokens, clear, false };
}

void Ubatches::end(bool ok, const UbatchDone & done, bool prompt, bool observes, bool lacks_room) {
    const bool hooked     = done.by != Attended::none;
    const int  n_last     = done.n_last_observed;
    const int  n_observed = n_last > 0 ? n_last : done.by == Attended::decode && observes ? n_tokens : 0;
    observed = observed || hooked || n_last > 0;

    if (ok) {
        pending.n_ubatches += 1;
        pending.n_tokens   += n_tokens;
        if (hooked) {
            pending.n_ubatches_hooked += 1;
            pending.n_tokens_hooked   += n_tokens;
        }
        pending.n_tokens_observed += n_observed;
        pending.n_tokens_prompt   += prompt ? n_tokens : 0;
        count_streams(n_observed, done.by == Attended::prompt);
    }
    // a ubatch of a prompt ends the run
    delivered = ok && run_every > 0 && (done.by != Attended::decode || n_last > 0 || pending.n_ubatches_hooked >= run_every || lacks_room);
}

// A ubatch has equally many tokens of each of its streams.
void Ubatches::count_streams(int n_observed, bool by_length) {
    pending.streams.resize(std::max(pending.streams.size(), streams.size()));
    for (size_t s = 0; s < streams.size(); ++s) {
        pending.streams[s].n_tokens   += streams[s].n_tokens;
        pending.streams[s].n_observed += n_observed * streams[s].n_tokens / n_tokens;
        pending.streams[s].n_prompt   += by_length ? streams[s].n_tokens : streams[s].n_prompt;
    }
}

void Ubatches::count_runs(int every) {
    assert(every >= 0);
    run_every = every;
    delivered = true;  // drops the sums so far
}

}  // namespace edgekv
