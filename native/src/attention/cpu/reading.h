// The division of a short ubatch's tokens: tokens that select rows, and tokens of a prompt, which read every visible cell.
#pragma once

#include "kernels/layout.h"

#include <cstdint>
#include <vector>

namespace edgekv {

struct State;

// Consecutive tokens of one stream of a graph. Each run has its own workspace, because a node has no barrier between two runs.
struct TokenRun {
    int stream;     // of the graph
    int first, n;   // tokens of the stream
    int workspace;
    uint32_t left;  // a bit for each token that the run leaves to another run
};

// At most one run of a stream selects, so that one thread writes a head's sums. It extends from the first token that selects to the last, and
// leaves out tokens in between that read every visible cell. Those tokens have runs of their own, which follow it.
struct Reading {
    std::vector<TokenRun> selected, whole;

    int n_workspaces() const { return static_cast<int>(selected.size() + whole.size()); }
    const TokenRun * selected_of(int stream) const;  // null: none
};

// selects: tokens select unless State::reads_all(); false: all tokens read every visible cell.
Reading find_reading(const State & ctx, int n_stream, int n_tokens, bool selects);

}  // namespace edgekv
