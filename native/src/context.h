// What hangs on one llama_context: layers, workspace, observation, mode.
#pragma once

#include "attend.h"
#include "buffer.h"
#include "edgekv.h"
#include "hierarchy.h"
#include "llama-edgekv.h"
#include "plane/device/engine.h"
#include "staging.h"

#include <atomic>
#include <climits>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace edgekv {

// What selection left of one stream: lists [n_tokens][n_head_kv], as in AttendRows.
struct RowLists {
    Buffer cells, weights, n_rows;
    size_t stride = 0;
    int n_tokens = 0;
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
    const ggml_tensor * k_idxs = nullptr;
    bool leads = false;  // the first layer that selects: it finds out what each token sees
    ggml_tensor * staged = nullptr;  // on a plane: the node that left K of all cells in the staging buffer

    std::vector<RowLists> lists;            // [stream], where they are kept
    std::vector<AttendHits> hits;           // [stream][n_head_kv]
    std::vector<edgekv_selected> selected;  // [stream][n_head_kv], without what is in hits
};

// which of our nodes attended a ubatch
enum class Attended : uint8_t { none, decode, prompt };

Isa selected_isa();
bool hooks_enabled();
const void * this_thread_name();  // another for each thread that lives

}  // namespace edgekv

struct edgekv_context {
    edgekv_context(llama_context * lctx, const edgekv_params & params);

    // decoding thread, at the begin and end of a ubatch
    void begin_ubatch(int n_tokens);
    bool end_ubatch(bool ok);  // whether the ubatch callback comes
    bool run_ended() const { return run_delivered; }  // with the ubatch before

    // decoding thread, while the graph is built
    edgekv::Layer * served_layer(int il, const ggml_tensor * k);
    bool attends(const ggml_tensor * k, int64_t n_tokens) const;  // decode-sized: kMaxQueryTokens a stream, on a plane kEngineTokens
    bool reserve_workspace(edgekv::AttendProblem problem, int n_stream_graph);
    bool selects(const edgekv::Layer & layer, int n_cells_view) const;

    bool sketches() const;
    edgekv::RowLists & lists_of(edgekv::Layer & layer, int64_t s) { return params.selection.keep_rows ? layer.lists[s] : lists[s]; }
    bool observes_prompts() const;  // the last tokens of each stream of a long ubatch
    bool reserve_prompt(size_t n_bytes);  // of each thread; false: out of memory

    // decoding thread, between ubatches
    edgekv_status set_selection(const edgekv_selection & selection);
    void count_runs(int every);
    bool reserve_sparse();  // false: out of memory, or on a plane: plane_error()
    bool reserve_host();    // what the host plane needs in the mode; false: out of memory

    // Puts the data plane where params.placement says, once, after the context is known to the hooks. false: `problem` says why, and
    // the context stays on the host plane.
    bool place();
    // On a plane, while nothing decodes: all pages leave the arena. Its memory is taken anew, for most_slots slots at most (false:
    // plane_error()), or given back.
    bool reserve_arena();
    void release_arena();
    const char * plane_error() const { return library->last_error(); }
    const char * failure();  // of the device, for good: no ubatch may be computed any more; null: none
    int next_row(const edgekv::Layer & layer) const;  // that is hooked, -1: none

    // compute threads
    float * mass_max(const edgekv::Layer & layer, int stream) const;
    float * mass_sum(const edgekv::Layer & layer, int stream) const;

    // whether a ubatch is under way on another thread than this: then nothing of the decoding thread's may be touched
    bool decodes_elsewhere() const;

    llama_context * const lctx;
    edgekv_params params;

    std::atomic<const void *> decoder{nullptr};  // this_thread_name() from a ubatch's begin to the end of its callback
    std::atomic<edgekv_mode> wanted_mode;
    std::atomic<bool> wanted_observe;
    std::atomic<bool> wanted_observe_prompts;

    std::vector<std::unique_ptr<edgekv::Layer>> layers;

    int n_rows           = 0;  // hooked layers
    int n_heads          = 0;
    int n_stream         = 0;
    int n_cells          = 0;  // per stream
    int pages_per_stream = 0;
    int n_pages          = 0;

    std::vector<edgekv::Buffer> workspaces;  // one a stream
    std::vector<edgekv::Buffer> select_workspaces;
    std::vector<edgekv::Buffer> sights;    // [n_tokens][groups of the view] of the ubatch, written by the layer that leads
    std::vector<std::vector<int32_t>> candidates;  // pages, one a thread, where there are no sketches
    std::vector<edgekv::RowLists> lists;   // of the layer that selected last: the next to run attends it
    std::vector<edgekv::Buffer> prompt_workspaces;  // one a thread
    struct {
        std::atomic<int> next{0}, done{0};  // work item, threads
    } prompt_items;  // of the prompt node that runs; zero between nodes
    std::vector<std::pair<const ggml_tensor *, ggml_tensor *>> seen;  // masks of the graph that is built, and the nodes that classify them
    struct {
        std::atomic<int64_t> seen{0}, attended{0};
    } prompt_blocks;  // of sparse prompts, over items, KV heads and layers
    // [stream][cell], not zero: the token was read by a sparse prompt, so that what its cell holds behind the first layer is approximate.
    // Null as long as no prompt was to be read so.
    std::unique_ptr<std::atomic<uint8_t>[]> read_sparsely;
    bool drops = false;  // mode evict: some head does not attend some page, in this ubatch
    edgekv::Hierarchy hierarchy;
    uint64_t n_ubatch = 0;
    bool leader_built = false;
    std::atomic<bool> sketched;   // all of the stale groups, in this ubatch
    edgekv::Buffer observation;              // mass_max, then mass_sum

    int n_tokens = 0;             // of the ubatch
    int run_every = 1;            // ubatches
    bool watched   = false;       // the ubatch callback comes after each, though runs do not
    // of the run
    struct {
        int n_ubatches = 0, n_ubatches_hooked = 0, n_tokens = 0, n_tokens_hooked = 0, n_tokens_observed = 0;
    } pending;
    std::atomic<edgekv::Attended> attended;  // in this ubatch
    std::atomic<int> n_last_observed;        // tokens of it that were observed where not all were
    int n_threads = 0;            // the workspace is sized for

    // on a device
    const edgekv::DeviceLibrary * library = nullptr;
    edgekv::Staging staging;  // before the plane, which waits for what is under way into it before either is freed
    std::unique_ptr<edgekv::Engine> plane;
    int most_slots = INT_MAX;
    std::string problem;
    edgekv_status problem_status = EDGEKV_OK;
    // of the graph that runs: recorded CUDA graphs are replayed without calling the nodes
    struct {
        bool built = false, attends = false, sketches = false, leads_all = false;
        int n_observed = 0;  // tokens
        int n_staged = 0;    // rows, all of the same view
        edgekv::EngineView staged = {};
    } graph;

private:
    bool lacks_room() const;
    void begin_plane(bool clear);
    edgekv::EngineShape plane_shape() const;
    std::string why_not_placed(edgekv_status & status) const;
    float * mass(int which, const edgekv::Layer & layer, int stream) const;
    void clear_observation();

    bool observation_dirty = false;
    bool run_delivered     = true;
};
