// How the tokens of a short ubatch read: by a selection, or whole as a prompt's.
#pragma once

#include "kernels/layout.h"

#include <cstdint>
#include <vector>

namespace edgekv {

struct State;

// Consecutive tokens of one stream of a graph, which have a workspace of their own: there is no barrier between two runs of a node.
struct TokenRun {
    int stream;     // of the graph
    int first, n;   // tokens of that stream
    int workspace;
    uint32_t left;  // a bit for each token of the run that another run reads
};

// Of a stream one run at most selects, so that one thread writes a head's sums: from the first token that does to the last. It comes before
// those of the tokens that read all they see, and leaves out those between.
struct Reading {
    std::vector<TokenRun> selected, whole;

    int n_workspaces() const { return static_cast<int>(selected.size() + whole.size()); }
    const TokenRun * selected_of(int stream) const;  // null: none
};

// selects: those of the ubatch's tokens that are not read exactly; else all of them read whole
Reading find_reading(const State & ctx, int n_stream, int n_tokens, bool selects);

}  // namespace edgekv
