// A ggml backend over the emulated device. As ggml's CUDA backend with our patch, it asks the glue which custom nodes run on it, names
// each graph before it computes it, and records graphs that stay the same, which it then replays without calling their nodes. Ordinary nodes
// are the CPU backend's, as functions on the stream, so that they too run only when the stream does, and again in a replay.
#pragma once

#include "graphs.h"

#include "ggml-backend-impl.h"

#include <cstdint>
#include <unordered_map>

namespace emulated {

constexpr int kDevice = 0;

// ends the process with last_error(), as CUDA_CHECK does
void must(bool done, const char * what);

// What happened in this process, for tests.
struct Counts {
    int64_t graphs;    // given to the backend
    int64_t refused;   // which must not be recorded
    int64_t direct;    // computed node by node
    int64_t recorded;
    int64_t replayed;  // with those that were recorded just before
    int64_t known;     // of the recorded and replayed, those that ggml's number of the graph alone told
    int64_t custom;    // custom nodes that were called
    int64_t served;    // graphs with custom nodes of ours
};
extern Counts counts;

ggml_backend_dev_t device();
ggml_backend_buffer_type_t device_memory();
ggml_backend_buffer_type_t pinned_memory();

// Of one ggml backend, which is one llama_context's.
struct Backend {
    Backend();
    ~Backend();
    Backend(const Backend &) = delete;
    Backend & operator=(const Backend &) = delete;

    void * stream() const { return own_stream; }
    void compute(ggml_cgraph & graph);

private:
    void enqueue(ggml_cgraph & graph);

    void * own_stream = nullptr;
    ggml_backend_t cpu = nullptr;
    std::unordered_map<const ggml_tensor *, Graph> graphs;  // by their first node, as ggml_cuda_graph_get_key
};

}  // namespace emulated
