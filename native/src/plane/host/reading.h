// How the tokens of a short ubatch read: by a selection, or whole as those of a prompt do.
#pragma once

#include "kernels/layout.h"

#include <cstdint>
#include <vector>

namespace edgekv {

struct State;

// Consecutive tokens of one stream of a graph. A run has a workspace of its own, because a node has no barrier between two runs.
struct TokenRun {
    int stream;     // of the graph
    int first, n;   // tokens of that stream
    int workspace;
    uint32_t left;  // a bit for each token that the run leaves to another
};

// At most one run of a stream selects, so that one thread writes a head's sums: it reaches from the first token that selects to the last, and
// leaves out the tokens between that read all they see. These have runs of their own, which come behind it.
struct Reading {
    std::vector<TokenRun> selected, whole;

    int n_workspaces() const { return static_cast<int>(selected.size() + whole.size()); }
    const TokenRun * selected_of(int stream) const;  // null: none
};

// selects: tokens that are not read exactly select. Else all tokens read whole.
Reading find_reading(const State & ctx, int n_stream, int n_tokens, bool selects);

}  // namespace edgekv
