// The engine of a context's plane on a device, as libedgekv sees it. libedgekv itself knows no CUDA: it opens libedgekv-cuda (or
// libedgekv-emulated, the same sources on an emulated device) at run time and finds there one function, edgekv_device_library().
//
// An engine owns all device memory of its context but the staging buffer, which is a ggml buffer: arena, sketches, mirrors of the page
// table, of the cells' positions and of pins, attention mass, lists and workspaces. Home stays llama.cpp's. Node calls come while a
// graph is computed or recorded; they enqueue on the stream they are given and never wait. Everything else comes from the decoding
// thread between ubatches.
#pragma once

#include "attention/cuda/trial.h"
#include "kernels/layout.h"
#include "edgekv.h"
#include "kernels/select/sample.h"
#include "kernels/sketch/sketch.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace edgekv {

constexpr int kEngineAbi = 15;

// The most query tokens of a stream that the nodes of a step serve; longer ubatches are prompts. The tokens form groups of at most
// kMaxQueryTokens, as even as possible, which are attended one after the other. The last group of a step is observed.
constexpr int kEngineTokens = 64;
inline int engine_groups(int n_tokens) { return (n_tokens + kMaxQueryTokens - 1) / kMaxQueryTokens; }
inline int engine_group_begin(int n_tokens, int group) {
    return static_cast<int>(static_cast<int64_t>(n_tokens) * group / engine_groups(n_tokens));
}
inline int engine_observed(int n_tokens) { return n_tokens - engine_group_begin(n_tokens, engine_groups(n_tokens) - 1); }

// A hooked layer. k and v: home in the device's addresses, of stream 0, cell 0, head 0. Strides in bytes.
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
    int n_heads;            // the maximum over layers
    int n_stream, n_cells;  // cells of a stream
    int page_tokens;
    int pages_per_stream, n_pages;
    size_t slot_bytes;
    size_t staging_bytes;   // already allocated on the device by the caller; they count against the budget
    size_t budget_bytes;    // 0: the free memory, less a margin
    std::vector<EngineLayer> layers;
};

struct EngineBytes {
    size_t budget, fixed, sketches, arena, tables, mass, workspace;
    int n_slots, n_slots_max;
    int tail_slot;  // the first tail slot, 0: none
};

// Host arrays that kernels read: entry `index` of the array is now `value`.
enum class Mirror : int { newest, positions, slots, open, pins, resolutions };
struct MirrorUpdate {
    Mirror array;
    // newest: [page]; positions: [stream][cell]; slots: [layer][head][page]; open: [stream][group of 64 cells]; pins: [stream][group][half];
    // resolutions: [layer][head]
    int64_t index;
    // slots: -1: none; engine_fill(slot): none, but a prompt that stages the page leaves it in this slot. open: not zero: the group has no sketch,
    // and its cells are certain. pins: a bit for each cell. resolutions: the bits of a float, 0: the selection's.
    int32_t value;
};
constexpr int32_t engine_fill(int32_t slot) { return -2 - slot; }

// Groups whose sketches are built in this step.
struct EngineStale {
    int32_t stream, group;
    uint64_t valid;
};

// Settings of a ubatch that are not in its graph.
struct EngineStep {
    const MirrorUpdate * updates;
    size_t n_updates;
    const EngineStale * stale;
    int n_stale;
    uint32_t n_ubatch;  // decides which heads have their error estimated
    bool clear_observation;
};

// A graph's view of the cache. It is part of the nodes' parameters, so that a recorded CUDA graph serves no other view.
struct EngineView {
    int32_t n_cells;    // of each stream, in view
    int32_t n_streams, first_stream;
    int32_t n_tokens;   // of each stream
    int32_t leads;      // the first node of the graph that needs the tokens' sights
    int32_t generation; // of the engine's buffers and the selection's parameters
};

// Some KV heads of a layer in the staging buffer: rows [stream of the cache][cell][head of the piece].
struct EnginePiece {
    int layer;  // -1: there is none
    int first_head, n_heads;
    char * k;
    char * v;
};
constexpr EnginePiece kNoPiece = { -1, 0, 0, nullptr, nullptr };

// Tensors are device addresses with ggml's strides in bytes.
struct EngineStore {
    const char * k;  // f32 [n_tokens of all streams][n_head_kv][head_dim]
    const char * v;
    size_t k_stride_token, k_stride_head, v_stride_token, v_stride_head;
    const int64_t * k_idxs;  // counted through all streams
    const int64_t * v_idxs;
    bool sketch;

    EnginePiece piece = kNoPiece;  // prompts: as Engine::stage(); kNoPiece: no prompt
    EnginePiece next  = kNoPiece;
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
    const edgekv_selection * selection;  // attend the rows that it samples; null: every page, through the ring if there is one
    const EngineStore * store;  // what the layer's store node has not stored, without staging; null: all is stored
    bool observe;
    int next_layer;  // the next layer of this graph that is attended without a selection; -1: none

    // The staging buffer, if it holds all heads, which is free in a graph that attends: home's rows in home's layout. Else null. The engine copies rows of home here once if several
    // groups of tokens read them; otherwise each token would read them over the link again.
    char * k_staging;
    char * v_staging;
};

// A graph that a backend computes or records on its own: a split of a step's graph, or a part of one. It has a flag for each layer whose nodes
// are in it.
struct EngineGraph {
    std::vector<bool> stores, attends;
    std::vector<int> staged;  // the first head of a layer's last piece here
};

class Engine {
public:
    virtual ~Engine() = default;  // waits for work under way

    // ---- memory ----
    // Frees what a mode has beside the tables: arena, ring, sketches, workspaces. No page is in a slot.
    virtual void release() = 0;
    // After release(). Memory for the sketches of all rows, empty until they are built; false: last_error()
    virtual bool reserve_sketches() = 0;
    virtual bool reserve_ring() = 0;   // after release(); mode exact
    // Reallocates the arena from the rest of the budget, for at most n_slots slots, and n_tail further slots for pages that are being
    // filled, if these are a small part of the arena. No page is in a slot.
    virtual bool reserve_arena(int n_slots, int n_tail) = 0;
    // Workspaces for graphs of this view and layer; false: last_error(). They may move: see generation().
    virtual bool reserve_workspace(int layer, const EngineView & view, bool lists) = 0;
    virtual int generation() const = 0;
    // Call it when parameters of nodes that are not in the graph (edgekv_selection) have changed: recorded graphs use the old ones.
    virtual void renew() = 0;
    virtual bool set_slots(int n_slots) = 0;  // in use
    // So many bytes of the arena, behind the slots in use, are for copies of the rows that lists name, as far as there are so many. All copies are lost
    // where this changes.
    virtual bool set_hot_rows(size_t n_bytes) = 0;
    virtual EngineBytes bytes() const = 0;

    virtual float * mass_max() = 0;  // [layer][head][page]
    virtual float * mass_sum() = 0;
    virtual char * arena() = 0;
    virtual const edgekv_device_layer * layers() = 0;
    virtual void * stream() = 0;

    // ---- around a ubatch ----
    virtual bool begin(const EngineStep & step) = 0;
    virtual void end() = 0;
    virtual bool selected(edgekv_selected * out, int first_layer, int n_layers) = 0;  // [layer][head]; waits
    virtual bool forget_selected() = 0;  // counts from here on

    // ---- failures ----
    // Around each node. begin_node: the node may run; false after a failure, or while ggml has yet to see a pending error. end_node
    // keeps the first failure with the node's name. `waits`: the node waits for its kernels, as every node does with EDGEKV_DEVICE_SYNC=1.
    virtual bool begin_node(void * stream) = 0;
    virtual void end_node(const char * name, void * stream, bool waits) = 0;
    virtual bool records() const = 0;       // false: nodes are waited for, which a recording forbids
    virtual const char * failure() const = 0;  // the first failure, in a node or around a ubatch, which is final; null: none

    // ---- nodes ----
    // From now until the next call, or begin(), the calls below belong to this graph. Work that one of them announces for the next layer begins
    // only if the graph has that layer. Needed if graphs are recorded.
    virtual void begin_graph(const EngineGraph & graph) = 0;
    virtual void store(int layer, const EngineView & view, const EngineStore & args, void * stream) = 0;
    // Prompts: copies all cells in view of some heads to the staging buffer, which the stock attention then reads. `next` is what will be staged next,
    // in a part of the buffer that nothing under way reads: it begins now, on a stream of its own. kNoPiece: nothing does.
    virtual void stage(const EnginePiece & piece, const EnginePiece & next, const EngineView & view, void * stream) = 0;
    virtual void attend(int layer, const EngineView & view, const EngineAttend & args, void * stream) = 0;

    // ---- checks ----
    virtual bool wait() = 0;  // for everything; false: a failure, last_error()
    virtual bool wait_for_step() = 0;  // for the stream of the step
    virtual bool read(void * dst, const void * src, size_t n_bytes) = 0;  // device to host; waits
    virtual const char * sketches(int layer, int stream) = 0;  // device address
    virtual size_t sketch_stream_bytes(int layer) = 0;
    // The rows of the group attended last, with edgekv_selection.keep_rows; waits
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
    bool (*pins)(int index, size_t n_bytes);  // whether the system pins so much host memory now; it is given back
    // Whole pages of `home`, of which kernels reach them from now on until unpin(), which waits for nobody. false: last_error()
    bool (*pin)(int index, char * p, size_t n_bytes, char * home, size_t home_bytes);
    void (*unpin)(int index, char * p);
    bool (*time_pinning)(int index, size_t n_bytes, edgekv_pinning * out);
    bool (*try_attend)(int index, const AttendTrial & trial, TrialRuns & seen);
    bool (*try_store)(int index, StoreTrial & trial, TrialRuns & seen);
    const char * (*last_error)();
};

}  // namespace edgekv

extern "C" EDGEKV_API const edgekv::DeviceLibrary * edgekv_device_library();
