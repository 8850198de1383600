// What belongs to the graph that was built last. A recorded CUDA graph is replayed without calling the nodes, so that it outlives a ubatch: the
// first node of the next graph makes it anew. The decoding thread writes it while it builds the graph.
#pragma once

#include "plane/device/engine.h"

#include <vector>

struct ggml_tensor;

namespace edgekv {

// What the nodes of one layer were built with.
struct DeviceNodes {
    float scale   = 0.0f;
    float softcap = 0.0f;
    const ggml_tensor * k_idxs = nullptr;  // from the store node until the attend node has it
    ggml_tensor * staged = nullptr;        // the node that left K of all cells in the staging buffer, until stock nodes have it
};

struct DeviceGraph {
    explicit DeviceGraph(size_t n_layers) : layers(n_layers) {}

    std::vector<DeviceNodes> layers;  // [hooked layer]
    bool built = false, attends = false, sketches = false, leads_all = false, leader_built = false;
    int n_observed = 0;  // tokens
    int n_staged = 0;    // layers, all of the same view
    EngineView staged = {};
};

}  // namespace edgekv
