// The state of the newest graph. It outlives a ubatch, because a recorded CUDA graph is replayed without calling the nodes. The
// first node of the next graph resets it. The decoding thread writes it while it builds the graph.
#pragma once

#include "attention/cuda/engine.h"

#include <vector>

struct ggml_tensor;

namespace edgekv {

// The tensors that one layer's nodes were built with.
struct DeviceNodes {
    float scale   = 0.0f;
    float softcap = 0.0f;
    ggml_tensor * store = nullptr;         // the store node of a step; the attend node takes it
    ggml_tensor * staged = nullptr;        // the node that leaves K of all cells in the staging buffer; stock nodes take it
};

struct DeviceGraph {
    explicit DeviceGraph(size_t n_layers) : layers(n_layers) {}

    std::vector<DeviceNodes> layers;  // [hooked layer]
    bool built = false, attends = false, sketches = false, leads_all = false, leader_built = false;
    int n_observed = 0;  // tokens
    int n_staged = 0;    // layers, all with the same view
    EngineView staged = {};
};

}  // namespace edgekv
