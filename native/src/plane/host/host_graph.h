// What belongs to the graph that was built last. The first node of a graph makes it anew, so that nothing of an older graph can be read. The
// decoding thread writes it while it builds the graph; the threads that compute the graph read it.
#pragma once

#include "plane/host/reading.h"

#include <utility>
#include <vector>

struct ggml_tensor;

namespace edgekv {

// What the nodes of one layer were built with.
struct LayerNodes {
    const ggml_tensor * k_idxs = nullptr;  // the cells of the new tokens; null: the layer has no store node of ours
    float scale   = 0.0f;
    float softcap = 0.0f;
    Reading reading;     // of a short ubatch
    int n_listed = 0;    // cells that come with each query, of which it reads those that it sees; 0: it reads all that it sees, or selects
    bool leads = false;  // the first layer that selects finds out what each token sees
};

// What the node of a layer that is attended whole was built with.
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
