// The state of the newest graph. The first node of the next graph resets it, so no node reads an older graph's state. The
// decoding thread writes it while it builds the graph; the threads that compute the graph read it.
#pragma once

#include "attention/cpu/reading.h"

#include <utility>
#include <vector>

struct ggml_tensor;

namespace edgekv {

// The parameters that one layer's nodes were built with.
struct LayerNodes {
    const ggml_tensor * k_idxs = nullptr;  // the cells of the new tokens; null: the layer has no store node of ours
    float scale   = 0.0f;
    float softcap = 0.0f;
    Reading reading;     // of a short ubatch
    int n_listed = 0;    // cells listed with each query, which reads those it sees; 0: there is no list, and it selects or reads all cells it sees
    bool leads = false;  // the first layer that selects finds each token's visible cells
};

// The parameters that the node of a layer attended whole was built with.
struct WholeNodes {
    float scale    = 0.0f;
    float softcap  = 0.0f;
    float max_bias = 0.0f;
};

struct HostGraph {
    HostGraph(size_t n_layers, size_t n_wholes) : layers(n_layers), wholes(n_wholes) {}

    std::vector<LayerNodes> layers;  // [hooked layer]
    std::vector<WholeNodes> wholes;
    bool has_leader = false;
    std::vector<std::pair<const ggml_tensor *, ggml_tensor *>> seen;  // masks, and the nodes that classify them
};

}  // namespace edgekv
