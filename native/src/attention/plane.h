// A plane holds a context's pages and runs its nodes, in the host's memory and cores or on a device. The context owns one plane, does not ask
// which kind it is, and reaches all differences through this interface: once for a node or a ubatch, never for a row.
//
//   HostPlane    attention/cpu: nodes on the threads of ggml's CPU backend
//   DevicePlane  attention/cuda: nodes on a GPU, by an engine that is opened at run time
//
// A plane belongs to the decoding thread. The first sentence of each function's comment is its precondition, which the function asserts. The
// context owns all data about pages except their bytes (cache/): cells, stale groups, the page table.
#pragma once

#include "state/layer.h"
#include "state/ubatch.h"
#include "edgekv.h"
#include "kernels/sketch/sketch.h"

#include <cstdint>
#include <string>
#include <vector>

namespace edgekv {

struct State;

struct Failure {
    edgekv_status status = EDGEKV_OK;
    std::string sentence;

    explicit operator bool() const { return status != EDGEKV_OK; }
};

// [layer][head][page], in the plane's own memory: a device plane gives device addresses
struct PageArrays {
    const uint8_t * dropped;  // null: no pages are dropped here
    const float * mass_max;
    const float * mass_sum;
};

// The rows that a query token has read in a KV head.
struct RowsRead {
    const int32_t * cells = nullptr;
    const float * weights = nullptr;  // null: all 1
    int n_rows = 0;
};

// For sparse prompts: the number of blocks that some token saw, and the number of attended blocks.
struct PromptBlocks {
    int64_t seen = 0, attended = 0;
};

class Plane {
public:
    explicit Plane(State & ctx) : ctx(ctx) {}
    virtual ~Plane() = default;  // waits for work under way

    // ======== Questions: the pages and the settings stay as they are ========

    // These may be called at any time.
    virtual const char * failure() const = 0;  // a final one: no further ubatch may be computed; null: none. The text lives as long as the plane
    virtual bool waits_for_rows() const = 0;   // its nodes wait for rows that come while they run (state/arrivals.h)
    virtual bool brings_pages() const = 0;     // prompts bring every page to the plane, and leave some in slots: edgekv_fill_pages()
    virtual bool plans_graphs() const = 0;     // llama.cpp reserves its buffers for graphs with this plane's nodes
    virtual PageArrays arrays() const = 0;
    virtual PromptBlocks prompt_blocks() const = 0;
    virtual void add_memory(edgekv_memory & out) const = 0;
    virtual bool describe(edgekv_device & out) const = 0;  // false: this is not a device
    virtual bool gives_back() const { return false; }  // mode evict: rows that a layer drops take no memory any more
    virtual bool gave_back(int, int) const { return false; }  // rows of a hooked layer's page
    virtual double tokens_held(int) const { return 0; }  // if so: tokens of a stream whose rows are kept, means of the layers by their bytes

    // The stream exists, or is below 0 and means all streams. Adds the sums of selection to `out`, [layer][head].
    void add_selected(edgekv_selected * out, int sequence) const;
    // The layer is served and has the head, the token is below kMaxQueryTokens, and the selection keeps rows. Returns rows of stream 0.
    RowsRead last_rows(const Layer & layer, int head, int token) const;

    // For checks. No ubatch is under way. They wait for a device, and return a copy in `copy` if the data are not in host memory.
    Sketch sketch(const Layer & layer, int stream, std::vector<char> & copy) const;  // the layer is served, and the stream exists
    const char * slot(int i, std::vector<char> & copy) const;                        // the table may name the slot

    // ======== Changes ========

    // No ubatch is under way, and the plane has the mode: only the host has evict. Takes the memory that the mode needs, and may give back
    // memory that it does not.
    Failure enter(edgekv_mode mode);
    // No ubatch is under way, and ctx.params still has the previous selection. On failure, that one stays in force.
    Failure select(const edgekv_selection & selection);
    // No ubatch is under way, and n_slots is not negative. Gives the arena memory for so many slots; only a device has an arena.
    Failure set_slots(int n_slots);
    // The same; see edgekv_set_hot_rows().
    Failure set_hot_rows(size_t n_bytes);
    // The same; see edgekv_limit_arena().
    Failure limit_slots(int n_slots);

    // No ubatch is under way, and the pages exist. Only the host drops pages, in mode evict.
    Failure drop_pages(const edgekv_move * moves, int n);

    // All K of layer il were written by a K-shift.
    virtual void keys_turned(int) {}

    // No ubatch is under way, and the pages are in step with the cells (Pages::sync).
    void begin(const UbatchBegin & ubatch);
    // The ubatch is the last one that began. A failed ubatch may have failed before it began here.
    UbatchDone end(bool ok);

    // The layer is served, and its graph is being built. false or null: stock nodes serve.
    bool build_store(Layer & layer, const llama_edgekv_store & args);
    ggml_tensor * build_attend(Layer & layer, const llama_edgekv_attend & args);
    // The layer is attended whole in every mode, and its graph is being built. It has no pages. null: stock nodes serve.
    ggml_tensor * build_whole(const Layer & layer, const llama_edgekv_attend & args);

    State & ctx;

protected:
    virtual Failure do_set_hot_rows(size_t n_bytes);  // of a plane without such a home

private:
    virtual void do_add_selected(edgekv_selected * out, int sequence) const = 0;
    virtual RowsRead do_last_rows(const Layer & layer, int head, int token) const = 0;
    virtual Sketch do_sketch(const Layer & layer, int stream, std::vector<char> & copy) const = 0;
    virtual const char * do_slot(int, std::vector<char> &) const { return nullptr; }
    virtual Failure do_enter(edgekv_mode mode) = 0;
    virtual Failure do_select(const edgekv_selection & selection) = 0;
    virtual Failure do_set_slots(int n_slots);
    virtual Failure do_limit_slots(int n_slots);
    virtual Failure do_drop_pages(const edgekv_move * moves, int n) = 0;
    virtual void do_begin(const UbatchBegin & ubatch) = 0;
    virtual UbatchDone do_end(bool ok) = 0;
    virtual bool do_build_store(Layer & layer, const llama_edgekv_store & args) = 0;
    virtual ggml_tensor * do_build_attend(Layer & layer, const llama_edgekv_attend & args) = 0;
    virtual ggml_tensor * do_build_whole(const Layer &, const llama_edgekv_attend &) { return nullptr; }

    bool computes = false;  // a ubatch is under way
};

}  // namespace edgekv
