// The plane on a device. An engine, opened at run time, holds pages and sketches there and runs the nodes; home stays in host memory.
#pragma once

#include "attention/cuda/device_graph.h"
#include "attention/cuda/engine.h"
#include "attention/plane.h"
#include "attention/cuda/staging.h"

#include <climits>
#include <memory>
#include <vector>

namespace edgekv {

struct State;

class DevicePlane;

// A served layer. Its address is the userdata of its graph nodes.
struct DeviceLayer {
    DevicePlane * plane = nullptr;
    const Layer * layer = nullptr;
    int index = -1;

    DeviceNodes & nodes() const;  // of the newest graph
};

class DevicePlane final : public Plane {
public:
    explicit DevicePlane(State & ctx);
    ~DevicePlane() override;

    // Takes the device that params.placement names. Called once, when the context has this plane. After a failure the plane is unusable.
    Failure place();

    const char * failure() const override { return engine->failure(); }
    bool waits_for_rows() const override { return false; }
    bool brings_pages() const override { return true; }
    bool plans_graphs() const override { return true; }
    PageArrays arrays() const override;
    PromptBlocks prompt_blocks() const override { return {}; }
    void add_memory(edgekv_memory & out) const override;
    bool describe(edgekv_device & out) const override;

    // ---- for its nodes ----
    DeviceLayer & of(const Layer & layer) const { return *layers[layer.info.index]; }
    bool serves(int index) const;  // the nodes of the backend's device of this number
    int next_layer(const Layer & layer) const;  // the next hooked layer, -1: none

    const DeviceLibrary * library = nullptr;
    bool on_backend = false;  // nodes run on the ggml backend of the device; else, emulated, on the CPU's
    Staging staging;  // outlives the engine, which waits for the copies into it
    std::unique_ptr<Engine> engine;

    DeviceGraph graph;

private:
    void do_add_selected(edgekv_selected * out, int sequence) const override;
    RowsRead do_last_rows(const Layer & layer, int head, int token) const override;
    Sketch do_sketch(const Layer & layer, int stream, std::vector<char> & copy) const override;
    const char * do_slot(int i, std::vector<char> & copy) const override;
    Failure do_enter(edgekv_mode mode) override;
    Failure do_select(const edgekv_selection & selection) override;
    Failure do_set_slots(int n_slots) override;
    Failure do_set_hot_rows(size_t n_bytes) override;
    Failure do_limit_slots(int n_slots) override;
    Failure do_drop_pages(const edgekv_move * moves, int n) override;
    void do_begin(const UbatchBegin & ubatch) override;
    UbatchDone do_end(bool ok) override;
    bool do_build_store(Layer & layer, const llama_edgekv_store & args) override;
    ggml_tensor * do_build_attend(Layer & layer, const llama_edgekv_attend & args) override;

    // ---- placement ----
    Failure no_memory() const { return { EDGEKV_NO_MEMORY, library->last_error() }; }
    Failure why_not() const;
    Failure pin_home();
    Failure reserve_staging(ggml_backend_dev_t device, const edgekv_device_info & info);
    Failure make_engine(ggml_backend_dev_t device);
    Failure reserve_widest(edgekv_mode mode);
    EngineShape engine_shape() const;

    // Call these while nothing decodes.
    bool reserve_mode(edgekv_mode mode);  // ring or sketches
    bool reserve_arena();  // all pages leave it; its memory is reallocated, for at most most_slots slots
    void empty_arena();    // all pages leave it
    // All memory for this mode instead of the present one's, which stays on failure; where they cannot, the mode is off.
    Failure change(edgekv_mode mode);

    // ---- for the engine ----
    void mirror_pages();
    void mirror_resolutions();

    std::vector<std::unique_ptr<DeviceLayer>> layers;  // by index
    int most_slots = INT_MAX;
    int n_tokens   = 0;  // in the ubatch
    int generation = 0;  // the engine's at the end of the previous ubatch
    std::vector<MirrorUpdate> updates;
    std::vector<EngineStale> stale;
    std::vector<float> resolutions;  // as the engine knows them; empty: it knows none
    std::vector<int32_t> open;  // StaleGroups::open_groups(), as the engine knows it
};

inline DeviceNodes & DeviceLayer::nodes() const { return plane->graph.layers[index]; }

}  // namespace edgekv
