// The engine of a context's plane on a device, as libedgekv sees it. libedgekv itself knows no CUDA: it opens libedgekv-cuda (or
// libedgekv-emulated, the same sources on an emulated device) at run time and finds there one function, edgekv_device_library().
//
// An engine owns all device memory of its context but the staging buffer, which is a ggml buffer: arena, sketches, mirrors of the page
// table, of the cells' positions and of pins, priority, attention mass, lists and workspaces. Home stays llama.cpp's. Node calls come while a
// graph is computed or recorded; they enqueue on the stream they are given and never wait. Everything else comes from the decoding
// thread between ubatches.
#pragma once

#include "kernels/layout.h"
#include "edgekv.h"
#include "kernels/select/sample.h"
#include "kernels/sketch/sketch.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace edgekv {

constexpr int kEngineAbi = 8;

// How many query tokens of a stream the nodes of a step serve; longer ubatches are prompts. The tokens form groups of at most
// kMaxQueryTokens, as even as may be, which are attended one behind the other. The last group of a step is observed.
constexpr int kEngineTokens = 64;
inline int engine_groups(int n_tokens) { return (n_tokens + kMaxQueryTokens - 1) / kMaxQueryTokens; }
inline int engine_group_begin(int n_tokens, int group) {
    return static_cast<int>(static_cast<int64_t>(n_tokens) * group / engine_groups(n_tokens));
}
inline int engine_observed(int n_tokens) { return n_tokens - engine_group_begin(n_tokens, engine_groups(n_tokens) - 1); }

// A hooked layer. Home as the device addresses it: stream 0, cell 0, head 0. Strides in bytes.
struct EngineLayer {
    int n_head, n_head_kv, head_dim;
    CellType k_type, v_type;
    char * k;
    char * v;
    size_t k_stride_stream, k_stride_cell, k_stride_head;
    size_t v_stride_stream, v_stride_cell, v_stride_head;
    size_t k_row_bytes, v_row_bytes;  // of one head of one cell
    size_t v_offset;                  // of V in a slot
};

struct EngineShape {
    int n_heads;            // the most of any layer
    int n_stream, n_cells;  // cells of a stream
    int page_tokens;
    int pages_per_stream, n_pages;
    size_t slot_bytes;
    size_t staging_bytes;   // the caller took these on the device already; they count against the budget
    size_t budget_bytes;    // 0: the free memory, less a margin
    std::vector<EngineLayer> layers;
};

struct EngineBytes {
    size_t budget, fixed, sketches, arena, tables, mass, workspace;
    int n_slots, n_slots_max;
    int tail_slot;  // the first of them, 0: none
};

// Host arrays that kernels read: entry `index` of the array is now `value`.
enum class Mirror : int { newest, positions, slots, open, pins, resolutions };
struct MirrorUpdate {
    Mirror array;
    int64_t index;  // newest: [page]; positions: [stream][cell]; slots: [layer][head][page]; open: [stream][group of 64 cells]; pins: [stream][group][half]; resolutions: [layer][head]
    int32_t value;  // pins: a bit for each cell; resolutions: the bits of a float, 0: the selection's; open: not zero: the group has no sketch, and its cells are certain; slots: -1: none; engine_fill(slot): none, but a prompt that stages the page leaves it in this slot
};
constexpr int32_t engine_fill(int32_t slot) { return -2 - slot; }

// Groups whose sketches are built in this step.
struct EngineStale {
    int32_t stream, group;
    uint64_t valid;
};

// Settings of a ubatch that its graph does not show.
struct EngineStep {
    const MirrorUpdate * updates;
    size_t n_updates;
    const EngineStale * stale;
    int n_stale;
    uint32_t n_ubatch;  // heads whose error is estimated take turns by it
    bool clear_observation;
};

// The part of the cache that a node's graph shows. It is part of the node's parameters, so that a recorded CUDA graph serves no other.
struct EngineView {
    int32_t n_cells;    // of each stream, in view
    int32_t n_streams, first_stream;
    int32_t n_tokens;   // of each stream
    int32_t leads;      // the first node of the graph that needs to know what each token sees
    int32_t generation; // of the engine's buffers and of the selection's numbers
};

// Tensors are device addresses with ggml's strides in bytes.
struct EngineStore {
    const char * k;  // f32 [n_tokens of all streams][n_head_kv][head_dim]
    const char * v;
    size_t k_stride_token, k_stride_head, v_stride_token, v_stride_head;
    const int64_t * k_idxs;  // counted through all streams
    const int64_t * v_idxs;
    bool sketch;

    // Prompts: all cells in view are copied to the staging buffer, which the stock attention then reads. null: no prompt.
    char * k_staging;  // of the cache's layout
    char * v_staging;
    char * k_next;     // where the next layer will be staged, which is begun now; null: it waits for its turn
    char * v_next;
    int next_layer;      // -1: none
};

struct EngineQuery {
    const char * q;  // f32 [n_tokens of all streams][n_head][head_dim]
    size_t q_stride_token, q_stride_head;
    MaskType mask_type;
    const char * mask;
    size_t mask_stride_token, mask_stride_stream;
    const int64_t * k_idxs;
    const float * sinks;  // [n_head] or null
    float scale, softcap;
};

struct EngineAttend {
    EngineQuery query;
    char * out;  // f32 [n_tokens of all streams][n_head][head_dim], contiguous
    const edgekv_selection * selection;  // attend the rows that it samples; null: every page, through the ring where there is one
    bool observe;
    int next_layer;  // that will be attended next in this graph without a selection; -1: none

    // The staging buffer, with the cache's layout. It is free in a graph that attends. Rows of home that several groups of tokens read come here
    // once, because otherwise each token would read them over the link again.
    char * k_staging;
    char * v_staging;
};

// A graph that a backend computes or records by itself: a split of a step's graph, or a part of one. It says for each layer whether the layer's
// nodes are in it.
struct EngineGraph {
    std::vector<bool> stores, attends;
};

class Engine {
public:
    virtual ~Engine() = default;  // waits for what is under way

    // ---- memory ----
    // Sketches of all rows; false: last_error(). made: they are new, and empty until they are built
    virtual bool reserve_sketches(SketchKind kind, bool & made) = 0;
    virtual bool reserve_ring() = 0;   // mode exact
    // Takes the arena's memory anew, from the rest of the budget, for n_slots slots at most. n_tail further slots are for the pages
    // that are being filled, if they are a small part of the arena. No page is in a slot.
    virtual bool reserve_arena(int n_slots, int n_tail) = 0;
    // Workspaces for graphs of this view and layer; false: last_error(). They may move: see generation().
    virtual bool reserve_workspace(int layer, const EngineView & view, SketchKind kind, bool lists) = 0;
    virtual int generation() const = 0;
    // Nodes get numbers that the graph does not show (edgekv_selection), and these have changed: recorded graphs know the old ones.
    virtual void renew() = 0;
    virtual bool set_slots(int n_slots) = 0;  // in use
    virtual EngineBytes bytes() const = 0;

    virtual float * priority() = 0;  // [layer][head][page]
    virtual float * mass_max() = 0;
    virtual float * mass_sum() = 0;
    virtual char * arena() = 0;
    virtual const edgekv_device_layer * layers() = 0;
    virtual void * stream() = 0;

    // ---- around a ubatch ----
    virtual bool begin(const EngineStep & step) = 0;
    virtual void end() = 0;
    virtual bool selected(edgekv_selected * out, int first_layer, int n_layers) = 0;  // [layer][head]; waits

    // ---- failures ----
    // Around each node. begin_node: the node may run; false behind a failure, and where an error stands that ggml has yet to see. end_node
    // keeps the first failure with the node's name. A node that `waits` for its kernels does as every node with EDGEKV_DEVICE_SYNC=1.
    virtual bool begin_node() = 0;
    virtual void end_node(const char * name, void * stream, bool waits) = 0;
    virtual bool records() const = 0;       // false: nodes are waited for, which a recording forbids
    virtual const char * failure() const = 0;  // the first, of a node or around a ubatch, for good; null: none

    // ---- nodes ----
    // The calls below belong to this graph from now on, or until begin(). Work that one of them announces for the next layer is begun only where
    // the graph has that layer. Needed where graphs are recorded.
    virtual void begin_graph(const EngineGraph & graph) = 0;
    virtual void store(int layer, const EngineView & view, const EngineStore & args, void * stream) = 0;
    virtual void attend(int layer, const EngineView & view, const EngineAttend & args, void * stream) = 0;

    // ---- looking closer ----
    virtual bool wait() = 0;  // for everything; false: something failed, last_error()
    virtual bool wait_for_step() = 0;  // for the stream of the step
    virtual bool read(void * dst, const void * src, size_t n_bytes) = 0;  // device to host; waits
    virtual const char * sketches(int layer, int stream) = 0;  // device address
    virtual size_t sketch_stream_bytes(int layer) = 0;
    // Of the group that was attended last, with edgekv_selection.keep_rows; waits
    virtual const int32_t * last_rows(int layer, int list, int & n_rows, const float *& weights) = 0;
};

struct DeviceLibrary {
    int abi;
    edgekv_device_kind kind;
    int (*count)();
    bool (*info)(int index, edgekv_device_info * out);
    bool (*rates)(int index, size_t host_bytes, edgekv_rates * out);
    // null: last_error(). `stream`: that the nodes will be given; null: the engine makes one of its own
    Engine * (*make)(int index, const EngineShape & shape, void * stream);
    bool (*is_pinned)(const void * host);
    const char * (*last_error)();
};

}  // namespace edgekv

extern "C" EDGEKV_API const edgekv::DeviceLibrary * edgekv_device_library();
