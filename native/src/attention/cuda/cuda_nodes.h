// The CUDA backend finds and runs our nodes through these functions.
#pragma once

#include "ggml.h"

namespace edgekv {

bool device_node_supported(int device, const ggml_tensor * node);
bool device_graph_begin(int device, ggml_cgraph * graph);  // false: the graph must not be recorded
void device_node_compute(int device, ggml_tensor * node, void * stream);

}  // namespace edgekv
