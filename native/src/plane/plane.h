// Where the pages of a context live and its nodes run: the host's memory and cores, or a device. The context owns one, asks nothing about
// which it is, and reaches whatever is different there through this interface: once a node or a ubatch, never once a row.
//
//   HostPlane    plane/host: nodes on the threads of ggml's CPU backend
//   DevicePlane  plane/device: nodes on a GPU, by an engine that is opened at run time
//
// Unless it says otherwise a function belongs to the decoding thread, between ubatches. What is known of pages without looking at their
// bytes is the context's (pages/): cells, stale groups, the page table.
#pragma once

#include "state/layer.h"
#include "state/ubatch.h"
#include "edgekv.h"
#include "kernels/sketch/sketch.h"

#include <cstdint>
#include <string>
#include <vector>

namespace edgekv {

struct Failure {
    edgekv_status status = EDGEKV_OK;
    std::string sentence;

    explicit operator bool() const { return status != EDGEKV_OK; }
};

// [row][head][page], in the plane's own memory: a device's addresses are of the device
struct PageArrays {
    float * priority;
    const uint8_t * dropped;  // null: no pages are dropped here
    const float * mass_max;
    const float * mass_sum;
};

// The rows that a query token read in a KV head.
struct RowsRead {
    const int32_t * cells = nullptr;
    const float * weights = nullptr;  // null: all 1
    int n_rows = 0;
};

// Of sparse prompts: blocks that some token saw, and of these those that it attended.
struct PromptBlocks {
    int64_t seen = 0, attended = 0;
};

class Plane {
public:
    virtual ~Plane() = default;  // waits for what is under way

    // ---- memory and settings ----
    virtual Failure enter(edgekv_mode mode) = 0;  // before a ubatch runs in it: takes what the mode needs, gives back what it does not
    virtual Failure reserve_selection(const edgekv_selection & selection) = 0;  // what mode sparse needs with it
    virtual void selection_changed() = 0;
    // The arena. The page table follows.
    virtual Failure set_slots(int n_slots) = 0;
    virtual Failure limit_slots(int n_slots) = 0;  // see edgekv_limit_arena()

    // ---- pages, which exist ----
    virtual Failure copy_pages(const edgekv_move * moves, int n) = 0;
    virtual Failure fill_pages(const edgekv_move * moves, int n) = 0;
    virtual Failure drop_pages(const edgekv_move * moves, int n) = 0;

    // ---- around a ubatch ----
    virtual void begin(const UbatchBegin & ubatch) = 0;  // behind the pages' sync
    virtual UbatchDone end(bool ok) = 0;
    virtual const char * failure() const = 0;  // for good: no ubatch may be computed any more; null: none. The plane's, as it lives
    virtual bool waits_for_rows() const = 0;   // its nodes wait for rows that are brought while they run (state/arrivals.h)
    virtual bool plans_graphs() const = 0;     // llama.cpp's buffers are to be reserved for graphs with this plane's nodes

    // ---- nodes, while a graph is built; false or null: the stock nodes serve ----
    virtual bool build_store(Layer & layer, const llama_edgekv_store & args) = 0;
    virtual ggml_tensor * build_attend(Layer & layer, const llama_edgekv_attend & args) = 0;

    // ---- what can be seen ----
    virtual PageArrays arrays() = 0;
    virtual void add_selected(edgekv_selected * out, int stream) = 0;  // [row][head], zero before; stream below 0: of all
    virtual RowsRead last_rows(const Layer & layer, int head, int token) = 0;  // of stream 0
    virtual PromptBlocks prompt_blocks() const = 0;
    virtual void add_memory(edgekv_memory & out) const = 0;
    virtual bool describe(edgekv_device & out) const = 0;  // false: this is not a device

    // ---- checks: copies in host memory, `copy` holds them where they are not there anyway ----
    virtual void wait() = 0;
    virtual Sketch sketch(const Layer & layer, int stream, std::vector<char> & copy) = 0;
    virtual const char * slot(int i, std::vector<char> & copy) = 0;
};

}  // namespace edgekv
