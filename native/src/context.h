// What hangs on one llama_context: layers, workspace, observation, mode.
#pragma once

#include "attend.h"
#include "edgekv.h"
#include "llama-edgekv.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

namespace edgekv {

// 64-byte aligned, zeroed; grows, never shrinks
class Buffer {
public:
    bool reserve(size_t n_bytes);  // contents are lost when it grows; false: out of memory, nothing changed
    void zero(size_t offset, size_t n_bytes);

    char * data() const { return ptr.get(); }
    size_t size() const { return n; }

private:
    struct Free {
        void operator()(char * p) const;
    };

    std::unique_ptr<char, Free> ptr;
    size_t n = 0;
};

// One model layer. Its address is the userdata of its graph nodes.
struct Layer {
    edgekv_context * owner = nullptr;
    int il = 0;
    edgekv_layer info = {};
    llama_edgekv_layer seam = {};

    // of the graph that is built last
    float scale   = 0.0f;
    float softcap = 0.0f;
};

Isa selected_isa();
bool hooks_enabled();

}  // namespace edgekv

struct edgekv_context {
    edgekv_context(llama_context * lctx, const edgekv_params & params);

    // decoding thread, at the begin and end of a ubatch
    void begin_ubatch(int n_tokens);
    void end_ubatch(bool ok);

    // decoding thread, while the graph is built
    edgekv::Layer * served_layer(int il, const ggml_tensor * k, int n_tokens);
    bool reserve_workspace(edgekv::AttendProblem problem, int n_stream_graph);

    // compute threads
    float * mass_max(const edgekv::Layer & layer, int stream) const;
    float * mass_sum(const edgekv::Layer & layer, int stream) const;

    llama_context * const lctx;
    edgekv_params params;

    std::atomic<edgekv_mode> wanted_mode;
    std::atomic<bool> wanted_observe;

    std::vector<std::unique_ptr<edgekv::Layer>> layers;

    int n_rows           = 0;  // hooked layers
    int n_heads          = 0;
    int n_stream         = 0;
    int n_cells          = 0;  // per stream
    int pages_per_stream = 0;
    int n_pages          = 0;

    std::vector<edgekv::Buffer> workspaces;  // one a stream
    edgekv::Buffer observation;              // mass_max, then mass_sum

    int n_tokens = 0;             // of the ubatch
    std::atomic<bool> attended;   // by the hook, in this ubatch
    int n_threads = 0;            // the workspace is sized for

    edgekv_counters counters = {};

private:
    float * mass(int which, const edgekv::Layer & layer, int stream) const;
    void clear_observation();

    bool observation_dirty = false;
};
