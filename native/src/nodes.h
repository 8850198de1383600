// The graph nodes: store K and V, attend, observe. Not one node, because a node has no barrier inside: every thread that attends must
// see the rows stored by all of them, and mass is known only when all have attended.
#pragma once

#include "context.h"

namespace edgekv {

bool build_store(edgekv_context & ctx, const llama_edgekv_store & args);
ggml_tensor * build_attend(edgekv_context & ctx, const llama_edgekv_attend & args);

}  // namespace edgekv
