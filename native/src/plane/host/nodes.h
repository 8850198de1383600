// The graph nodes of the host plane: store K and V and sketch them, select rows, attend, observe. Not one node, because a node has no
// barrier inside: every thread that attends must see the rows stored and selected by all of them, and where every cell is attended, mass
// is known only when all have attended.
#pragma once

#include "plane/host/host_plane.h"

namespace edgekv {

// the node that fills the lists of `layer`; null: out of memory
ggml_tensor * build_select(HostLayer & layer, const llama_edgekv_attend & args);

// the node that attends ubatches too long for the decode kernel; null: no kernel for these heads, or out of memory
ggml_tensor * build_attend_prompt(HostLayer & layer, const llama_edgekv_attend & args);

}  // namespace edgekv
