// The decoding thread divides the tokens of a short ubatch into runs while it builds the graph.
//
//   1. In each stream, the run that selects extends from the first token that selects to the last.
//   2. Its `left` marks tokens in between that read every visible cell.
//   3. Consecutive tokens that read every visible cell form a run of their own, even inside the run that selects.
//   4. Each run gets a number, which is its workspace: first the runs that select, then the others.
//
// The division reads the ubatch's tokens (State::reads_all) and touches no memory of nodes. The graph's state (host_graph.h) keeps the result
// unchanged while the graph is computed.
#include "attention/cpu/reading.h"

#include "state/state.h"

namespace edgekv {

const TokenRun * Reading::selected_of(int stream) const {
    for (const TokenRun & run : selected) {
        if (run.stream == stream) {
            return &run;
        }
    }
    return nullptr;
}

Reading find_reading(const State & ctx, int n_stream, int n_tokens, bool selects) {
    Reading reading;
    for (int s = 0; s < n_stream; ++s) {
        const auto reads_all = [&](int token) { return !selects || ctx.reads_all(s * n_tokens + token); };

        TokenRun selected = { s, 0, 0, 0, 0 };
        for (int token = 0; token < n_tokens; ++token) {
            if (!reads_all(token)) {
                selected.first = selected.n == 0 ? token : selected.first;
                selected.n     = token + 1 - selected.first;
            }
        }
        for (int token = 0; token < n_tokens; ++token) {
            if (!reads_all(token)) {
                continue;
            }
            if (token >= selected.first && token < selected.first + selected.n) {
                selected.left |= uint32_t{1} << (token - selected.first);
            }
            if (token > 0 && reads_all(token - 1)) {
                reading.whole.back().n += 1;
            } else {
                reading.whole.push_back({ s, token, 1, 0, 0 });
            }
        }
        if (selected.n > 0) {
            reading.selected.push_back(selected);
        }
    }

    int workspace = 0;
    for (auto * runs : { &reading.selected, &reading.whole }) {
        for (TokenRun & run : *runs) {
            run.workspace = workspace++;
        }
    }
    return reading;
}

}  // namespace edgekv
