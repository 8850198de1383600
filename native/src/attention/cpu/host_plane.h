// The plane on the host. Pages and sketches lie in host memory; nodes run on the threads of ggml's CPU backend.
#pragma once

#include "kernels/decode/attend.h"
#include "cache/buffer.h"
#include "cache/drops.h"
#include "cache/gone.h"
#include "cache/sketches.h"
#include "attention/cpu/claims.h"
#include "attention/cpu/disk_rows.h"
#include "attention/cpu/host_graph.h"
#include "attention/cpu/read_ahead.h"
#include "attention/plane.h"

#include <atomic>
#include <memory>
#include <vector>

namespace edgekv {

struct State;

// The lists of selected rows for one run of tokens: [n_tokens][n_head_kv], as in AttendRows.
struct RowLists {
    Buffer cells, weights, n_rows;
    Buffer slots;  // of copies (disk_rows.h), if there are any
    size_t stride = 0;
    int n_tokens = 0;
    bool weighted = false;  // the rows are a sample

    size_t bytes() const { return cells.size() + weights.size() + n_rows.size() + slots.size(); }
    bool reserve(int n_tokens, int n_head_kv, size_t stride, bool copied);  // false: out of memory

    int32_t * cells_of(size_t list) const { return reinterpret_cast<int32_t *>(cells.data()) + list * stride; }
    float * weights_of(size_t list) const { return reinterpret_cast<float *>(weights.data()) + list * stride; }
    int32_t * slots_of(size_t list) const { return reinterpret_cast<int32_t *>(slots.data()) + list * stride; }
    int32_t & n_rows_of(size_t list) const { return reinterpret_cast<int32_t *>(n_rows.data())[list]; }
};

class HostPlane;

// A served layer. Its address is the userdata of its graph nodes.
struct HostLayer {
    HostPlane * plane = nullptr;
    const Layer * layer = nullptr;
    int index = -1;  // among the hooked layers

    const LayerNodes & nodes() const;  // of the newest graph

    std::vector<RowLists> lists;            // [run that selects], if params.selection.keep_rows
    std::vector<AttendHits> hits;           // [stream][n_head_kv]
    std::vector<edgekv_selected> selected;  // [sequence][n_head_kv]; `hits` has the other sums
};

// A layer attended whole in every mode. Its address is the userdata of its graph node.
struct WholeLayer {
    HostPlane * plane = nullptr;
    int il = -1;
    int index = -1;  // in HostGraph::wholes

    const WholeNodes & nodes() const;  // of the newest graph
};

class HostPlane final : public Plane {
public:
    explicit HostPlane(State & ctx);  // throws std::bad_alloc
    bool reserve();  // allocates the memory that the context's mode needs; false: out of memory

    const char * failure() const override;
    bool waits_for_rows() const override { return true; }
    bool brings_pages() const override { return false; }
    bool plans_graphs() const override { return false; }
    PageArrays arrays() const override;
    PromptBlocks prompt_blocks() const override;
    void add_memory(edgekv_memory & out) const override;
    static size_t observation_bytes(const PageShape & shape) { return 2 * shape.n_entries() * sizeof(float); }
    bool describe(edgekv_device &) const override { return false; }
    bool gives_back() const override { return gives; }
    bool gave_back(int layer, int page) const override { return gone.is(layer, page); }
    double tokens_held(int stream) const override;
    void keys_turned(int il) override;

    // ---- shared by its nodes ----

    // The decoding thread calls these while it builds the graph.
    HostLayer & of(const Layer & layer) const { return *layers[layer.info.index]; }
    LayerNodes & build(const HostLayer & layer);   // the first call of a ubatch resets the graph's state
    WholeNodes & build(const WholeLayer & layer);  // the same
    bool selects(const HostLayer & layer, int n_cells_view) const;
    llama_edgekv_cells cells_of(int stream) const;  // none if the context has no such cache
    uint64_t there(int layer, int stream, int group) const;  // a bit for each cell of a group whose rows the layer did not give back
    bool observes_prompts() const;  // whether a long ubatch observes the last tokens of each stream
    bool reserve_workspaces(HostLayer & layer, AttendProblem problem);  // for all runs of the layer's reading; false: out of memory
    bool reserve_prompt(size_t n_bytes);  // for each thread; false: out of memory
    RowLists & lists_of(HostLayer & layer, const TokenRun & run);

    // [page of the stream]
    float * mass_max(int layer, int stream) const { return mass(0, layer, stream); }  // null: not observed
    float * mass_sum(int layer, int stream) const { return mass(1, layer, stream); }

    HostGraph graph;
    Sketches sketches;
    Drops drops;
    Gone gone;
    ReadAhead ahead;
    DiskRows disk;
    bool evicts = false;   // mode evict: some head has a dropped page during this ubatch

    uint64_t n_ubatch = 0;
    int n_threads = 0;     // the workspaces are sized for so many
    std::vector<Buffer> workspaces;  // one a run of tokens
    std::vector<Buffer> select_workspaces;
    std::vector<Buffer> sights;    // one a run, [n_tokens][groups of the view]; the leading layer writes them
    std::vector<Buffer> prompt_workspaces;  // one a thread
    Claims prompt_items;  // of the running prompt node
    struct {
        std::atomic<int64_t> seen{0}, attended{0};
    } blocks;  // of sparse prompts, summed over items, KV heads and layers

    // This ubatch's nodes report here.
    std::atomic<bool> sketched{false};
    std::atomic<Attended> attended{Attended::none};
    std::atomic<int> n_last_observed{0};

private:
    void do_add_selected(edgekv_selected * out, int sequence) const override;
    RowsRead do_last_rows(const Layer & layer, int head, int token) const override;
    Sketch do_sketch(const Layer & layer, int stream, std::vector<char> & copy) const override;
    Failure do_enter(edgekv_mode mode) override;
    Failure do_select(const edgekv_selection & selection) override;
    Failure do_set_hot_rows(size_t n_bytes) override;
    Failure do_drop_pages(const edgekv_move * moves, int n) override;
    void do_begin(const UbatchBegin & ubatch) override;
    UbatchDone do_end(bool ok) override;
    bool do_build_store(Layer & layer, const llama_edgekv_store & args) override;
    ggml_tensor * do_build_attend(Layer & layer, const llama_edgekv_attend & args) override;
    ggml_tensor * do_build_whole(const Layer & layer, const llama_edgekv_attend & args) override;

    void build_anew();
    void follow_cells(bool clear_observation);
    // giving.cpp
    void give_back_from_now();  // mode evict is in force, or was
    void give_back(int layer, int page);
    std::vector<int> tokens_by_page(int stream) const;
    void give_back_again(int layer, int stream);
    void give_rows_back(int layer, int first, int end);  // pages
    void empty_partial(int stream, int first, int end);  // cells
    int  first_cell(int page) const;      // in its stream
    bool has_whole_cell(int page) const;  // a token that has its rows in all layers
    void comes_back(int page);            // without its partial cells: no layer's rows of the page are gone
    void all_come_back();                 // the pages with a whole cell
    void follow_copies();  // at a ubatch's begin: streams were copied
    void follow_gone();    // then: pages got tokens, or lost them
    bool reserve_sketches();
    float * mass(int which, int layer, int stream) const;

    std::vector<std::unique_ptr<HostLayer>> layers;  // [hooked layer]
    std::vector<WholeLayer> wholes;
    bool builds = false;  // this ubatch builds a graph
    bool gives  = false;  // every layer with rows can give them back, and does
    std::vector<RowLists> lists;  // of the layer that selected last and attends next
    struct Reached {
        int pages  = 0;  // up to the last one that may be observed in this run
        int groups = 0;  // up to the last one that may have a sketch
    };
    std::vector<Reached> reached;  // [stream]
    std::vector<uint64_t> n_copied;  // [stream] as of the last ubatch
    std::vector<bool> copied;        // [stream] since then
    Buffer observation;           // mass_max, then mass_sum
};

inline const LayerNodes & HostLayer::nodes() const { return plane->graph.layers[index]; }
inline const WholeNodes & WholeLayer::nodes() const { return plane->graph.wholes[index]; }

}  // namespace edgekv
