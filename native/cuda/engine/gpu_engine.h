// The engine of attention/cuda/engine.h over gpu.h: memory (engine_memory.cu), begin and end of a ubatch (step.cu), nodes (nodes.cu).
#pragma once

#include "cuda/kernels/attend_device.h"
#include "cuda/kernels/move_device.h"
#include "cuda/kernels/sample_device.h"
#include "attention/cuda/engine_sizes.h"
#include "cuda/kernels/sight_device.h"
#include "cuda/kernels/sketch_device.h"
#include "cuda/engine/step_state.h"
#include "cuda/kernels/store_device.h"

#include <deque>

namespace edgekv::gpu {

// keeps `sentence` for the library's error(); returns false
bool fail_with(const std::string & sentence);
std::string mebibytes(size_t n_bytes);

// Device memory, zeroed; grows, never shrinks.
class DeviceBuffer {
public:
    DeviceBuffer() = default;
    DeviceBuffer(DeviceBuffer && other) noexcept { *this = std::move(other); }
    DeviceBuffer & operator=(DeviceBuffer && other) noexcept;
    ~DeviceBuffer() { release(); }

    bool reserve(size_t n_bytes);  // growing waits for the device and loses the contents
    void release();

    template <class T>
    T * as() const { return static_cast<T *>(ptr); }
    char * data() const { return static_cast<char *>(ptr); }
    size_t size() const { return n; }

private:
    void * ptr = nullptr;
    size_t n   = 0;
};

struct PinnedBuffer {
    PinnedBuffer() = default;
    PinnedBuffer(const PinnedBuffer &) = delete;
    PinnedBuffer & operator=(const PinnedBuffer &) = delete;
    ~PinnedBuffer() { free_pinned(ptr); }
    bool reserve(size_t n_bytes) { return alloc_pinned(&ptr, n_bytes); }  // once

    char * data() const { return static_cast<char *>(ptr); }

private:
    void * ptr = nullptr;
};

// a layer's home as the kernels take it
inline EdgekvDeviceLayer home_of(const EngineLayer & r) {
    EdgekvDeviceLayer home = {};
    home.k               = reinterpret_cast<uintptr_t>(r.k);
    home.v               = reinterpret_cast<uintptr_t>(r.v);
    home.k_stride_stream = r.k_stride_stream;
    home.k_stride_cell   = r.k_stride_cell;
    home.k_stride_head   = r.k_stride_head;
    home.v_stride_stream = r.v_stride_stream;
    home.v_stride_cell   = r.v_stride_cell;
    home.v_stride_head   = r.v_stride_head;
    home.k_row_bytes     = r.k_row_bytes;
    home.v_row_bytes     = r.v_row_bytes;
    home.v_offset        = r.v_offset;
    home.n_heads         = r.n_head_kv;
    return home;
}

class GpuEngine final : public Engine {
public:
    GpuEngine(int index, const EngineShape & shape, Stream stream);
    ~GpuEngine() override;
    bool init();  // false: last_error()

    void release() override;
    bool reserve_sketches() override;
    bool reserve_ring() override;
    bool reserve_arena(int n_slots, int n_tail) override;
    bool reserve_workspace(int layer, const EngineView & view, bool lists) override;
    int generation() const override { return current; }
    void renew() override { current = next_generation(); }
    bool set_slots(int n_slots) override;
    bool set_hot_rows(size_t n_bytes) override;
    EngineBytes bytes() const override;

    float * mass_max() override { return mass.as<float>(); }
    float * mass_sum() override { return mass.as<float>() + n_entries(); }
    char * arena() override { return slots_memory.data(); }
    const edgekv_device_layer * layers() override { return layer_table.as<edgekv_device_layer>(); }
    void * stream() override { return main; }

    bool begin(const EngineStep & step) override;
    void end() override {}
    bool selected(edgekv_selected * out, int first_layer, int n_layers) override;
    bool forget_selected() override;

    bool begin_node(void * stream) override;
    void end_node(const char * name, void * stream, bool waits) override;
    bool records() const override { return !syncs; }
    const char * failure() const override { return failed.empty() ? nullptr : failed.c_str(); }

    void begin_graph(const EngineGraph & graph) override;
    void store(int layer, const EngineView & view, const EngineStore & args, void * stream) override;
    void stage(const EnginePiece & piece, const EnginePiece & next, const EngineView & view, void * stream) override;
    void attend(int layer, const EngineView & view, const EngineAttend & args, void * stream) override;

    bool wait() override;
    bool wait_for_step() override { return wait_for(main); }
    bool read(void * dst, const void * src, size_t n_bytes) override;
    const char * sketches(int layer, int stream) override;
    size_t together_bytes = kTogetherBytes;  // tests set less

    size_t sketch_stream_bytes(int layer) override { return layer_sketches[layer].stream_bytes; }
    const int32_t * last_rows(int layer, int list, int & n_rows, const float *& weights) override;

private:
    struct LayerSketches {
        size_t stream_bytes = 0;
        DeviceBuffer data;
    };
    // A step's upload. There are two: the host fills one while the device still reads the other.
    struct Upload {
        PinnedBuffer host;
        DeviceBuffer updates;
        Event done = nullptr;
    };
    // The pages that one half of the ring takes at a time: part `chunk` of a stream's pages of a layer.
    struct Fill {
        int layer, stream, chunk;
        bool operator==(const Fill & other) const { return layer == other.layer && stream == other.stream && chunk == other.chunk; }
    };

    size_t n_entries() const { return engine_entries(shape); }
    size_t n_layer_entries() const { return static_cast<size_t>(shape.n_heads)*shape.n_pages; }
    int32_t * mirror(size_t offset) const { return mirrored.as<int32_t>() + offset; }
    size_t slots_stride() const { return static_cast<size_t>(shape.n_pages); }
    int32_t * slots_of(int layer, int stream) const {
        return mirror(mirrors.slots) + layer*n_layer_entries() + static_cast<size_t>(stream)*shape.pages_per_stream;
    }
    size_t used_bytes() const;
    bool grow(DeviceBuffer & buffer, size_t n_bytes);
    bool in_budget(size_t n_bytes) const;
    bool upload_step(const EngineStep & step);
    bool upload_updates(const EngineStep & step);
    bool wait_for(Stream stream);
    bool join(Stream stream);
    void keep_failure(const char * where);

    SketchArray sketch_array(int layer, int first_stream) const;
    SketchHome sketch_home(int layer, int first_stream) const;
    PageSlots page_slots(int layer, int first_stream) const;  // data is null without an arena
    HotRows hot_rows(int layer) const;
    // Whether the rows that a layer lists are kept. Where several groups of tokens read them, they lie in the staging buffer meanwhile.
    bool keeps_rows(const EngineAttend & args) const { return rows.n_sets > 0 && !args.k_staging; }
    bool place_rows();
    StoreArgs store_args(int layer, const EngineView & view, const EngineStore & args) const;
    AttendProblem problem(int layer, const EngineView & view, const EngineAttend & args, int s) const;
    int pages_in_view(const EngineView & view) const { return (view.n_cells + shape.page_tokens - 1)/shape.page_tokens; }
    EngineRing ring() const { return { ring_memory.size(), ring_held.size() }; }
    int ring_pages(int layer) const { return engine_ring_pages(shape, layer, ring()); }
    int n_chunks(int layer, const EngineView & view) const;
    int groups_per_stream() const { return engine_stream_groups(shape); }
    static int groups_in_view(const EngineView & view) { return (view.n_cells + kGroupCells - 1)/kGroupCells; }
    size_t list_stride() const { return engine_list_stride(shape); }
    size_t brought_stride() const { return list_stride()/32; }

    bool comes(int layer, const std::vector<bool> & layers) const;  // whether the layer comes later in this graph
    bool comes(const EnginePiece & next, int layer) const;
    void forget_ring();
    void mark_fresh(const EngineView & view, const int64_t * k_idxs, Stream stream);
    void fill_ring(const Fill & fill, const EngineView & view, Stream stream);
    Ring ring_of(int layer, int half, const EngineView & view, int chunk) const;
    // A TokenGroup and its part of the graph.
    struct Group {
        EngineView view;
        EngineAttend args;
        size_t first;  // index of its first among the graph's query tokens
    };
    std::vector<Group> groups_of(const EngineView & view, const EngineAttend & args, int layer) const;

    CellRows staged_rows(const EnginePiece & piece, bool value) const;
    void stage_piece(const EnginePiece & piece, const EngineView & view, Stream stream);
    void take_piece(const EnginePiece & piece, const EngineView & view, Stream stream);
    void announce(const EnginePiece & next, const EngineView & view, Stream stream);
    void bring_rows(int layer, const EngineView & view, const EngineAttend & args, int s, Stream stream);
    Sight * sights_of(size_t query) const { return sights.as<Sight>() + query*groups_per_stream(); }
    void find_sight(const EngineView & view, const EngineAttend & args, Stream stream);
    // `store`: what the launch of the scan stores and builds too; null: nothing
    void select(int layer, const Group & group, const StoreArgs * store, Stream stream);
    void attend_lists(int layer, const EngineView & view, const EngineAttend & args, int s, Stream stream);
    void attend_all(int layer, const EngineView & view, const EngineAttend & args, int s, Stream stream);

    const int index;
    const EngineShape shape;
    Device card;
    Stream main = nullptr, side = nullptr;
    bool owns_main = false;
    const EngineMirrors mirrors;

    DeviceBuffer mirrored, mass, layer_table, slots_memory, totals, hits, tickets, state, stale;
    DeviceBuffer ring_memory, ring_held, fresh, brought;
    DeviceBuffer sights, shares, share_tops, share_sums, lists, list_weights, list_copies, list_lengths, sample_words, attend_workspace;
    std::vector<LayerSketches> layer_sketches;
    int n_slots = 0, n_slots_max = 0, n_tail_slots = 0;
    size_t row_bytes_wanted = 0;  // of copies of rows
    EngineRows rows = {};         // behind the slots in use, in the arena
    size_t budget = 0;
    static int next_generation();  // unique in the process: recorded graphs outlive their plane
    int current = next_generation();

    Upload uploads[2];
    int turn = 0;

    // prompts: what is on its way to the staging buffer
    Event fork = nullptr, staged = nullptr;
    EnginePiece announced = kNoPiece;

    // the ring
    Event half_filled[2] = {}, half_free[2] = {};
    EngineGraph graph;          // empty: unknown
    bool side_joined = false;  // the side stream follows the main one in this graph
    bool half_used[2] = {};    // in this graph
    int n_fills = 0;
    std::deque<std::pair<Fill, int>> filling;  // each with its half of the ring

    static constexpr const char * kSomewhere = "in a step (EDGEKV_DEVICE_SYNC=1 finds the node)";
    const bool syncs;
    std::string failed;  // the name of the first node that failed

    int last_layer = -1, n_last_lists = 0;
    std::vector<int32_t> last_list;
    std::vector<float> last_weights;
};

}  // namespace edgekv::gpu
