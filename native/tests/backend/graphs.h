// What the backend remembers of a graph between two computations.
#pragma once

#include "ggml.h"

#include <cstdint>
#include <vector>

struct ggml_backend;

namespace emulated {

// A node as a recording would have it: CUDA's replays read no tensor.
struct Properties {
    ggml_tensor node;
    void * data[GGML_MAX_SRC];
    int64_t ne[GGML_MAX_SRC][GGML_MAX_DIMS];
    size_t nb[GGML_MAX_SRC][GGML_MAX_DIMS];
};

enum class Way { direct, record, replay };

class Graph {
public:
    Graph() = default;
    ~Graph();
    Graph(const Graph &) = delete;
    Graph & operator=(const Graph &) = delete;

    // How to compute it now: a graph is recorded when it comes for the second time, and replayed as long as it is the same.
    Way next(const ggml_cgraph & graph);
    void recorded(void * recording);
    void * recording() const { return own; }
    bool told_by_number() const { return by_number; }  // of the newest next()

private:
    bool changed(const ggml_cgraph & graph);

    std::vector<Properties> nodes;
    uint64_t uid = 0;
    bool warm = false, by_number = false;
    void * own = nullptr;
};

bool computes(const ggml_tensor * node);  // false: a view, or nothing to do

// The stream runs this ordinary node with what its tensors are now.
void enqueue_ordinary(ggml_backend * cpu, const ggml_tensor * node, void * stream);

}  // namespace emulated
