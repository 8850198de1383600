// The functions by which the CUDA backend asks for and runs our nodes in its graphs.
#pragma once

#include "ggml.h"

namespace edgekv {

bool device_node_supported(int device, const ggml_tensor * node);
bool device_graph_begin(int device, ggml_cgraph * graph);  // false: it must not be recorded
void device_node_compute(int device, ggml_tensor * node, void * stream);

}  // namespace edgekv
