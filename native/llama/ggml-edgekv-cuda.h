// Custom nodes (GGML_OP_CUSTOM) on ggml's CUDA backend. The patched ggml-cuda.cu includes this header and calls these functions. A library
// that serves nodes finds the registration function through the backend registry, so nothing links against ggml-cuda:
//
//   ggml_backend_reg_get_proc_address(reg, GGML_EDGEKV_CUDA_SET_CUSTOM)   ggml_edgekv_cuda_set_custom_t
//   ggml_backend_reg_get_proc_address(reg, GGML_EDGEKV_CUDA_STREAM)       ggml_edgekv_cuda_stream_t
//
// Until a table is registered, the backend supports no custom node, and the scheduler leaves them to the CPU, as upstream does.
#pragma once

#include "ggml.h"

#include <atomic>

#define GGML_EDGEKV_CUDA_SET_CUSTOM "ggml_edgekv_cuda_set_custom_v2"
#define GGML_EDGEKV_CUDA_STREAM     "ggml_edgekv_cuda_stream_v2"

struct ggml_edgekv_cuda_custom {
    // whether compute() serves this node on this device
    bool (*supports)(int device, const struct ggml_tensor * node);

    // A graph, which is a split of the scheduler's or a part of one, is about to be computed, recorded or replayed. Each capture stands
    // alone. false: the graph must not be recorded.
    bool (*begin)(int device, struct ggml_cgraph * graph);

    // Enqueues the node on a cudaStream_t. If the stream records a CUDA graph, replays do not call this function, as long as the node, its
    // sources' addresses and their shapes stay the same. The node and all sources lie in this device's buffers. Must not wait for the
    // device.
    void (*compute)(int device, struct ggml_tensor * node, void * stream);
};

// the cudaStream_t that compute() gets for nodes of this backend
typedef void * (*ggml_edgekv_cuda_stream_t)(struct ggml_backend * backend);

// the table must outlive its use; null removes it
typedef void (*ggml_edgekv_cuda_set_custom_t)(const struct ggml_edgekv_cuda_custom * table);

// a ggml_edgekv_cuda_stream_t; only ggml-cuda.cu knows both types
template <typename Context, typename Backend>
void * ggml_edgekv_cuda_stream(Backend * backend) { return static_cast<Context *>(backend->context)->stream(); }

inline std::atomic<const ggml_edgekv_cuda_custom *> & ggml_edgekv_cuda_table() {
    static std::atomic<const ggml_edgekv_cuda_custom *> table{nullptr};
    return table;
}

inline void ggml_edgekv_cuda_set_custom(const ggml_edgekv_cuda_custom * table) {
    ggml_edgekv_cuda_table().store(table, std::memory_order_release);
}

inline bool ggml_edgekv_cuda_supports(int device, const ggml_tensor * node) {
    const auto * table = ggml_edgekv_cuda_table().load(std::memory_order_acquire);
    return table && table->supports(device, node);
}

inline bool ggml_edgekv_cuda_begin(int device, ggml_cgraph * graph) {
    const auto * table = ggml_edgekv_cuda_table().load(std::memory_order_acquire);
    return !table || table->begin(device, graph);
}

inline bool ggml_edgekv_cuda_compute(int device, ggml_tensor * node, void * stream) {
    const auto * table = ggml_edgekv_cuda_table().load(std::memory_order_acquire);
    if (!table || !table->supports(device, node)) {
        return false;
    }
    table->compute(device, node, stream);
    return true;
}
