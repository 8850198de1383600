#include "graphs.h"

#include "cuda/gpu.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <cstring>
#include <memory>

namespace emulated {

namespace emulator = edgekv::gpu::emulator;

Graph::~Graph() {
    if (own) {
        emulator::graph_destroy(own);
    }
}

// As ggml_cuda_graph_update_required: graphs of one number are the same, others are compared node by node.
bool Graph::changed(const ggml_cgraph & graph) {
    by_number = graph.uid != 0 && graph.uid == uid;
    if (by_number) {
        GGML_ASSERT(static_cast<int>(nodes.size()) == graph.n_nodes);
        return false;
    }
    uid = graph.uid;

    bool found = static_cast<int>(nodes.size()) != graph.n_nodes;
    nodes.resize(graph.n_nodes);
    for (int i = 0; i < graph.n_nodes; ++i) {
        Properties now;
        std::memset(static_cast<void *>(&now), 0, sizeof(now));
        std::memcpy(static_cast<void *>(&now.node), graph.nodes[i], sizeof(now.node));
        for (int j = 0; j < GGML_MAX_SRC; ++j) {
            if (const ggml_tensor * source = now.node.src[j]) {
                now.data[j] = source->data;
                std::memcpy(now.ne[j], source->ne, sizeof(now.ne[j]));
                std::memcpy(now.nb[j], source->nb, sizeof(now.nb[j]));
            }
        }
        if (found || std::memcmp(&nodes[i], &now, sizeof(now)) != 0) {
            nodes[i] = now;
            found = true;
        }
    }
    return found;
}

// As in ggml_backend_cuda_graph_compute: a graph that changed is computed directly until it stays the same.
Way Graph::next(const ggml_cgraph & graph) {
    if (changed(graph)) {
        warm = false;
        return Way::direct;
    }
    const bool was_warm = warm;
    warm = true;
    return was_warm && own ? Way::replay : Way::record;
}

void Graph::recorded(void * recording) {
    if (own) {
        emulator::graph_destroy(own);
    }
    own = recording;
}

bool computes(const ggml_tensor * node) {
    switch (node->op) {
        case GGML_OP_NONE:
        case GGML_OP_RESHAPE:
        case GGML_OP_TRANSPOSE:
        case GGML_OP_VIEW:
        case GGML_OP_PERMUTE:
            return false;
        default:
            return !ggml_is_empty(node) && (node->flags & GGML_TENSOR_FLAG_COMPUTE);
    }
}

namespace {

struct Ordinary {
    ggml_tensor node;
    ggml_tensor sources[GGML_MAX_SRC];

    explicit Ordinary(const ggml_tensor & now) : node(now) {
        for (int i = 0; i < GGML_MAX_SRC; ++i) {
            if (now.src[i]) {
                sources[i]  = *now.src[i];
                node.src[i] = &sources[i];
            }
        }
    }

    void run(ggml_backend * cpu) {
        ggml_tensor * nodes[] = { &node };
        ggml_cgraph graph = {};
        graph.size    = 1;
        graph.n_nodes = 1;
        graph.nodes   = nodes;
        GGML_ASSERT(ggml_backend_graph_compute(cpu, &graph) == GGML_STATUS_SUCCESS);
    }
};

}  // namespace

void enqueue_ordinary(ggml_backend * cpu, const ggml_tensor * node, void * stream) {
    const auto own = std::make_shared<Ordinary>(*node);
    emulator::enqueue_host(stream, [cpu, own] { own->run(cpu); });
}

}  // namespace emulated
