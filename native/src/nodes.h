// The graph nodes: store K and V and sketch them, select rows, attend, observe. Not one node, because a node has no barrier inside:
// every thread that attends must see the rows stored and selected by all of them, and where every cell is attended, mass is known only
// when all have attended.
#pragma once

#include "context.h"

namespace edgekv {

bool build_store(edgekv_context & ctx, const llama_edgekv_store & args);
ggml_tensor * build_attend(edgekv_context & ctx, const llama_edgekv_attend & args);

// the node that fills the lists of `layer`; null: out of memory
ggml_tensor * build_select(edgekv_context & ctx, Layer & layer, const llama_edgekv_attend & args);

// the node that attends ubatches too long for the decode kernel; null: no kernel for these heads, or out of memory
ggml_tensor * build_attend_prompt(edgekv_context & ctx, Layer & layer, const llama_edgekv_attend & args);

// on a plane: the same nodes, run by the device
bool build_store_device(edgekv_context & ctx, Layer & layer, const llama_edgekv_store & args);
ggml_tensor * build_attend_device(edgekv_context & ctx, Layer & layer, const llama_edgekv_attend & args);

// what the CUDA backend asks and calls
bool device_node_supported(int device, const ggml_tensor * node);
bool device_graph_begin(int device, ggml_cgraph * graph);  // false: it must not be recorded
void device_node_compute(int device, ggml_tensor * node, void * stream);

}  // namespace edgekv
