#include "attention/cuda/device_plane.h"

#include "state/state.h"

#include "llama-edgekv-pinned.h"

#include <algorithm>
#include <cstring>

namespace edgekv {

DevicePlane::DevicePlane(State & ctx) : Plane(ctx), graph(ctx.hooked.size()) {
    for (const Layer * served : ctx.hooked) {
        auto layer = std::make_unique<DeviceLayer>();
        layer->plane = this;
        layer->layer = served;
        layer->index = served->info.index;
        layers.push_back(std::move(layer));
    }
}

DevicePlane::~DevicePlane() {
    engine.reset();  // waits for who reads home
    llama_edgekv_unpin_rows(ctx.lctx);
}

// ---- memory and settings -----------------------------------------------------------------------------------------------------

bool DevicePlane::reserve_mode(edgekv_mode mode) {
    if (mode != EDGEKV_MODE_SPARSE) {
        return mode == EDGEKV_MODE_OFF || engine->reserve_ring();
    }
    ctx.pages.stale.mark_all();
    return engine->reserve_sketches();
}

// Mode off leaves the memory to stock nodes, which copy K and V of each layer to the device.
Failure DevicePlane::change(edgekv_mode mode) {
    const auto take = [this](edgekv_mode mode) {
        empty_arena();
        engine->release();
        Failure why = reserve_mode(mode) ? reserve_widest(mode) : no_memory();
        return why || mode == EDGEKV_MODE_OFF || reserve_arena() ? why : no_memory();
    };
    Failure why = take(mode);
    if (why && take(ctx.wanted_mode.load(std::memory_order_relaxed))) {
        take(EDGEKV_MODE_OFF);
        ctx.wanted_mode.store(EDGEKV_MODE_OFF, std::memory_order_release);
        why.sentence += "; the mode is off now, because what the one before had is taken";
    }
    return why;
}

Failure DevicePlane::do_select(const edgekv_selection &) {
    engine->renew();
    return {};
}

Failure DevicePlane::do_enter(edgekv_mode mode) {
    return mode != ctx.wanted_mode.load(std::memory_order_relaxed) ? change(mode) : Failure{};
}

bool DevicePlane::reserve_arena() {
    Table & table = ctx.pages.table;
    empty_arena();
    const bool reserved = engine->reserve_arena(most_slots, most_slots > 0 ? table.n_tail_slots() : 0);
    table.set_tail(engine->bytes().tail_slot);
    return reserved;
}

void DevicePlane::empty_arena() {
    ctx.pages.table.set_tail(0);
    ctx.pages.table.set_slots(0);
}

Failure DevicePlane::do_set_slots(int n_slots) { return engine->set_slots(n_slots) ? Failure{} : no_memory(); }

Failure DevicePlane::do_set_hot_rows(size_t n_bytes) { return engine->set_hot_rows(n_bytes) ? Failure{} : no_memory(); }

Failure DevicePlane::do_limit_slots(int n_slots) {
    most_slots = n_slots;
    if (ctx.wanted_mode.load(std::memory_order_relaxed) != EDGEKV_MODE_OFF && !reserve_arena()) {
        return no_memory();
    }
    return {};
}

// ---- pages -------------------------------------------------------------------------------------------------------------------

Failure DevicePlane::do_drop_pages(const edgekv_move *, int) { return { EDGEKV_UNSUPPORTED, "a device cannot drop pages" }; }

// ---- around a ubatch ---------------------------------------------------------------------------------------------------------

// Lists the entries of the engine's arrays that changed since the previous ubatch. An entry listed twice has the same value both times.
void DevicePlane::mirror_pages() {
    const PageShape & shape = ctx.shape;
    const Cells &     cells = ctx.pages.cells;
    Table &           table = ctx.pages.table;

    updates.clear();
    for (int s = 0; s < shape.n_stream; ++s) {
        const int32_t * positions = cells.positions(s);
        for (const ChangedPage & changed : cells.changed_now(s)) {
            const int page  = changed.page % shape.pages_per_stream;
            const int first = page * shape.page_tokens;
            updates.push_back({ Mirror::newest, changed.page, cells.newest(s)[page] });
            for (int c = first; c < std::min(first + shape.page_tokens, shape.n_cells); ++c) {
                updates.push_back({ Mirror::positions, static_cast<int64_t>(s) * shape.n_cells + c, positions[c] });
            }
        }
    }
    for (const int32_t id : open) {
        if (!ctx.pages.stale.is_open(id / shape.n_groups(), id % shape.n_groups())) {
            updates.push_back({ Mirror::open, id, 0 });
        }
    }
    open = ctx.pages.stale.open_groups();
    for (const int32_t id : open) {
        updates.push_back({ Mirror::open, id, 1 });
    }
    for (const int32_t id : ctx.pages.pins.changed()) {
        const uint64_t bits = ctx.pages.pins.of(id / shape.n_groups(), id % shape.n_groups());
        updates.push_back({ Mirror::pins, 2 * static_cast<int64_t>(id), static_cast<int32_t>(static_cast<uint32_t>(bits)) });
        updates.push_back({ Mirror::pins, 2 * static_cast<int64_t>(id) + 1, static_cast<int32_t>(static_cast<uint32_t>(bits >> 32)) });
    }
    for (const int64_t entry : table.touched()) {
        const int32_t slot = table.slot_of(entry);
        const int32_t fill = slot < 0 ? table.slot_to_fill(entry) : -1;
        updates.push_back({ Mirror::slots, entry, fill >= 0 ? engine_fill(fill) : slot });
    }
    table.touched_taken();
}

void DevicePlane::mirror_resolutions() {
    if (resolutions == ctx.resolutions) {
        return;
    }
    const size_t n = static_cast<size_t>(ctx.shape.n_layers) * ctx.shape.n_heads;
    for (size_t i = 0; i < n; ++i) {
        const float value = ctx.resolutions.empty() ? 0.0f : ctx.resolutions[i];
        int32_t bits;
        std::memcpy(&bits, &value, sizeof(bits));
        updates.push_back({ Mirror::resolutions, static_cast<int64_t>(i), bits });
    }
    resolutions = ctx.resolutions;
}

void DevicePlane::do_begin(const UbatchBegin & ubatch) {
    if (ubatch.anew) {
        graph = DeviceGraph(layers.size());
    }
    graph.built        = false;
    graph.leader_built = false;
    if (engine->generation() != generation) {
        llama_edgekv_invalidate_graph(ctx.lctx);  // a recording of it has what changed since
    }

    mirror_pages();
    mirror_resolutions();
    stale.clear();
    for (const StaleGroup & group : ctx.pages.stale.to_build()) {
        stale.push_back({ group.stream, group.group, group.valid });
    }

    EngineStep step = {};
    step.updates           = updates.data();
    step.n_updates         = updates.size();
    step.stale             = stale.data();
    step.n_stale           = static_cast<int>(stale.size());
    step.n_ubatch          = static_cast<uint32_t>(ubatch.number);
    step.clear_observation = ubatch.clear_observation;
    engine->begin(step);  // failure() reports an error
    n_tokens = ubatch.n_tokens;
}

UbatchDone DevicePlane::do_end(bool ok) {
    engine->end();
    generation = engine->generation();
    if (on_backend && ctx.params.placement.kind == EDGEKV_DEVICE_EMULATED) {
        engine->wait_for_step();  // Python's arrays are NumPy's there, which know no stream; failure() reports an error
    }
    const PageShape &  shape  = ctx.shape;
    const EngineView & staged = graph.staged;
    const bool         all    = ok && graph.n_staged == shape.n_layers;
    ctx.pages.table.end_fills([&](int stream, int page) {
        return all && stream >= staged.first_stream && stream < staged.first_stream + staged.n_streams &&
               std::min((page + 1) * shape.page_tokens, shape.n_cells) <= staged.n_cells;
    });
    return { graph.attends ? Attended::decode : Attended::none, graph.sketches, graph.n_observed < n_tokens ? graph.n_observed : 0 };
}

// ---- what can be seen --------------------------------------------------------------------------------------------------------

PageArrays DevicePlane::arrays() const { return { nullptr, engine->mass_max(), engine->mass_sum() }; }

void DevicePlane::do_add_selected(edgekv_selected * out, int sequence) const {
    if (sequence < 0 || llama_n_seq_max(ctx.lctx) == 1) {  // the engine has no sums for single sequences
        engine->selected(out, 0, ctx.shape.n_layers);
    }
}

RowsRead DevicePlane::do_last_rows(const Layer & layer, int head, int token) const {
    RowsRead out;
    out.cells = engine->last_rows(layer.info.index, token * layer.info.n_head_kv + head, out.n_rows, out.weights);
    return out;
}

void DevicePlane::add_memory(edgekv_memory & out) const {
    const EngineBytes bytes = engine->bytes();
    out.observation_bytes += bytes.mass;
    out.workspace_bytes   += bytes.workspace + staging.bytes();
    out.sketch_bytes      += bytes.sketches;
    out.arena_bytes       += bytes.arena;
    out.table_bytes       += bytes.tables;
    out.device_bytes      += bytes.fixed + bytes.arena;
    out.pinned             = on_backend;
}

bool DevicePlane::describe(edgekv_device & out) const {
    const EngineBytes bytes = engine->bytes();
    out = { ctx.params.placement.kind, ctx.params.placement.index, engine->stream(), engine->arena(), ctx.shape.slot_bytes, bytes.n_slots,
            bytes.n_slots_max, ctx.shape.n_cells, engine->layers(), bytes.budget, bytes.fixed, staging.bytes() };
    return true;
}

// ---- checks ------------------------------------------------------------------------------------------------------------------

Sketch DevicePlane::do_sketch(const Layer & layer, int stream, std::vector<char> & copy) const {
    engine->wait();
    const int    index = layer.info.index;
    const char * there = engine->sketches(index, stream);
    copy.resize(there ? engine->sketch_stream_bytes(index) : 0);
    engine->read(copy.data(), there, copy.size());
    return { layer.info.head_dim, layer.info.n_head_kv, ctx.shape.n_groups(), there ? copy.data() : nullptr };
}

const char * DevicePlane::do_slot(int i, std::vector<char> & copy) const {
    engine->wait();
    copy.resize(ctx.shape.slot_bytes);
    engine->read(copy.data(), engine->arena() + i * ctx.shape.slot_bytes, copy.size());
    return copy.data();
}

}  // namespace edgekv
