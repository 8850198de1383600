// The device memory of a plane.
#include "cuda/engine/gpu_engine.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace edgekv::gpu {
namespace {

bool waits_for_nodes() {
    const char * value = std::getenv("EDGEKV_DEVICE_SYNC");
    return value && *value && std::strcmp(value, "0") != 0;
}

}  // namespace

// ---- buffers -----------------------------------------------------------------------------------------------------------------

DeviceBuffer & DeviceBuffer::operator=(DeviceBuffer && other) noexcept {
    std::swap(ptr, other.ptr);
    std::swap(n, other.n);
    return *this;
}

bool DeviceBuffer::reserve(size_t n_bytes) {
    if (n_bytes <= n) {
        return true;
    }
    void * fresh;
    if (!alloc(&fresh, align256(n_bytes))) {
        return false;
    }
    release();
    ptr = fresh;
    n   = align256(n_bytes);
    return true;
}

void DeviceBuffer::release() {
    if (ptr) {
        free_device(ptr);
    }
    ptr = nullptr;
    n   = 0;
}

// ---- life --------------------------------------------------------------------------------------------------------------------

GpuEngine::GpuEngine(int index, const EngineShape & shape, Stream stream) :
    index(index), shape(shape), main(stream), mirrors(engine_mirrors(shape)), syncs(waits_for_nodes()) {
    layer_sketches.resize(shape.layers.size());
}

int GpuEngine::next_generation() {
    static std::atomic<int> newest{0};
    return ++newest;
}

bool GpuEngine::init() {
    if (!use_device(index) || !device(index, card)) {
        return false;
    }
    owns_main = main == nullptr;
    if ((owns_main && !stream_create(&main)) || !stream_create(&side)) {
        return false;
    }
    for (Event * event : { &fork, &staged, &half_filled[0], &half_filled[1], &half_free[0], &half_free[1],
                           &uploads[0].done, &uploads[1].done }) {
        if (!event_create(event)) {
            return false;
        }
    }

    EngineView view = {};
    view.n_cells   = shape.n_cells;
    view.n_streams = view.n_tokens = 1;
    for (size_t r = 0; r < shape.layers.size(); ++r) {
        if (const EngineLayer & layer = shape.layers[r]; !attend_device_supports(problem(static_cast<int>(r), view, {}, 0))) {
            return fail_with("the GPU's kernels do not serve this model: " + std::to_string(layer.n_head/layer.n_head_kv) +
                             " query heads of size " + std::to_string(layer.head_dim) + " share a KV head (at most " + std::to_string(kMaxGroup) +
                             " are served, of size 256 at most); --attention-device cpu runs its attention on the processor");
        }
    }

    static_assert(kUpdateBytes == sizeof(int2) && kStepStateBytes == sizeof(StepState), "as the tables' sizes have it");
    const EngineTables tables = engine_tables(shape);
    if (!mirrored.reserve(tables.mirrors) || !mass.reserve(tables.mass) || !layer_table.reserve(tables.layers) ||
        !totals.reserve(tables.totals) || !hits.reserve(tables.hits) || !tickets.reserve(tables.tickets) || !state.reserve(tables.step) || !stale.reserve(tables.stale) ||
        !fresh.reserve(tables.fresh) || !brought.reserve(tables.brought)) {
        return false;
    }
    for (auto & upload : uploads) {
        if (!upload.host.reserve(tables.updates + tables.step + tables.stale) || !upload.updates.reserve(tables.updates)) {
            return false;
        }
    }

    // all cells and pages start empty, without slots and pins, and no group is open: its first key builds its sketch
    std::vector<int32_t> empty(std::min(mirrors.end, size_t{1} << 20), -1);
    for (size_t i = 0; i < mirrors.end; i += empty.size()) {
        if (!copy(mirror(i), empty.data(), std::min(empty.size(), mirrors.end - i)*sizeof(int32_t))) {
            return false;
        }
    }
    const std::vector<int32_t> none(mirrors.end - mirrors.open);  // clears `open`, `pins` and `resolutions`
    std::vector<EdgekvDeviceLayer> table;  // edgekv_device_layer, see move_device.cu
    for (const EngineLayer & layer : shape.layers) {
        table.push_back(home_of(layer));
    }
    return copy(mirror(mirrors.open), none.data(), none.size()*sizeof(int32_t)) &&
           copy(layer_table.data(), table.data(), table.size()*sizeof(EdgekvDeviceLayer));
}

GpuEngine::~GpuEngine() {
    use_device(index);
    wait();
    for (Event event : { fork, staged, half_filled[0], half_filled[1], half_free[0], half_free[1], uploads[0].done,
                         uploads[1].done }) {
        if (event) {
            event_destroy(event);
        }
    }
    if (side) {
        stream_destroy(side);
    }
    if (owns_main && main) {
        stream_destroy(main);
    }
}

bool GpuEngine::wait() {
    const bool main_ok = !main || wait_for(main);
    return (!side || wait_for(side)) && main_ok;
}

bool GpuEngine::wait_for(Stream stream) {
    take_failure();
    if (stream_sync(stream)) {
        return true;
    }
    keep_failure(kSomewhere);
    return false;
}

bool GpuEngine::read(void * dst, const void * src, size_t n_bytes) {
    return use_device(index) && wait_for(main) && copy(dst, src, n_bytes);
}

// ---- memory of a mode -------------------------------------------------------------------------------------------------------

bool GpuEngine::grow(DeviceBuffer & buffer, size_t n_bytes) {
    if (n_bytes <= buffer.size()) {
        return true;
    }
    renew();  // recorded graphs hold the old buffer's address
    return in_budget(used_bytes() - buffer.size() + align256(n_bytes)) && use_device(index) && buffer.reserve(n_bytes);
}

bool GpuEngine::in_budget(size_t n_bytes) const {
    return !shape.budget_bytes || n_bytes <= shape.budget_bytes ||
           fail_with("the KV budget of " + mebibytes(shape.budget_bytes) + " on the GPU is too small: sketches, tables and buffers for prompts take " +
                     mebibytes(n_bytes) + " or more at this context; give more --kv-vram, a smaller context, or a q8_0 or q4_0 cache");
}

void GpuEngine::release() {
    wait();
    use_device(index);
    for (DeviceBuffer * b : { &slots_memory, &ring_memory, &ring_held, &sights, &shares, &share_tops, &share_sums, &lists, &list_weights, &list_copies,
                              &list_lengths, &sample_words, &attend_workspace }) {
        b->release();
    }
    for (LayerSketches & s : layer_sketches) {
        s.data.release();
    }
    renew();
    n_slots = n_slots_max = n_tail_slots = n_last_lists = 0;
    rows = {};
}

bool GpuEngine::reserve_sketches() {
    for (size_t r = 0; r < shape.layers.size(); ++r) {
        LayerSketches & s = layer_sketches[r];
        s.stream_bytes = engine_sketch_stream_bytes(shape, static_cast<int>(r));
        if (!grow(s.data, s.stream_bytes*shape.n_stream)) {
            return false;
        }
    }
    return true;
}

bool GpuEngine::reserve_ring() {
    Device now;
    if (!device(index, now)) {
        return false;
    }
    const EngineRing wanted = engine_ring(shape, now.free_bytes);
    return grow(ring_memory, wanted.pages) && grow(ring_held, wanted.held);
}

size_t GpuEngine::used_bytes() const {
    size_t n = shape.staging_bytes;
    for (const DeviceBuffer * b : { &mirrored, &mass, &layer_table, &slots_memory, &totals, &hits, &tickets, &state, &stale, &ring_memory,
                                    &ring_held, &fresh, &brought, &sights, &shares, &share_tops, &share_sums, &lists, &list_weights, &list_copies,
                                    &list_lengths, &sample_words, &attend_workspace, &uploads[0].updates, &uploads[1].updates }) {
        n += b->size();
    }
    for (const auto & s : layer_sketches) {
        n += s.data.size();
    }
    return n;
}

bool GpuEngine::reserve_arena(int n_wanted, int n_tail) {
    Device now;
    if (slots_memory.size()) {
        wait();
        slots_memory.release();
    }
    renew();
    n_slots = n_slots_max = n_tail_slots = 0;
    rows = {};
    if (!use_device(index) || !device(index, now)) {
        return false;
    }

    const size_t used   = used_bytes();
    const size_t margin = least_margin(now.has_display);
    size_t room = now.free_bytes > margin ? now.free_bytes - margin : 0;
    if (shape.budget_bytes) {
        if (!in_budget(used)) {
            return false;
        }
        room = shape.budget_bytes - used;
        if (room > now.free_bytes) {
            return fail_with("the GPU has " + mebibytes(now.free_bytes) + " free where the KV budget needs " + mebibytes(room) +
                             " more; lower --kv-vram by " + mebibytes(room - now.free_bytes) + ", offload fewer layers, or use auto");
        }
    }

    const EngineArena arena = engine_arena(shape, room, n_wanted, n_tail);
    if (!slots_memory.reserve(arena.bytes(shape.slot_bytes))) {
        return false;
    }
    n_slots_max  = arena.n_slots;
    n_tail_slots = arena.n_tail;
    budget = shape.budget_bytes ? shape.budget_bytes : used_bytes();
    return true;
}

bool GpuEngine::set_slots(int n) {
    if (n > n_slots_max) {
        return fail_with("the arena on the GPU has room for " + std::to_string(n_slots_max) + " pages, not for " + std::to_string(n));
    }
    n_slots = n;
    return place_rows();
}

bool GpuEngine::set_hot_rows(size_t n_bytes) {
    if (n_bytes > n_slots_max*shape.slot_bytes) {
        return fail_with("the arena on the GPU has " + mebibytes(n_slots_max*shape.slot_bytes) + ", not " + mebibytes(n_bytes) + " for rows");
    }
    row_bytes_wanted = n_bytes;
    return place_rows();
}

// Rows take the arena's end, as far as the slots in use leave it to them. They begin empty.
bool GpuEngine::place_rows() {
    const EngineRows before = rows;
    const size_t end = n_slots_max*shape.slot_bytes;
    rows = engine_rows(shape, end, std::min(row_bytes_wanted, end - n_slots*shape.slot_bytes));
    if (rows.n_sets == before.n_sets && rows.offset == before.offset) {
        return true;
    }
    renew();
    return rows.n_sets == 0 || (use_device(index) && zero_async(slots_memory.data() + rows.offset, rows.entry_bytes(), main));
}

EngineBytes GpuEngine::bytes() const {
    EngineBytes out = {};
    for (const auto & s : layer_sketches) {
        out.sketches += s.data.size();
    }
    out.arena       = slots_memory.size();
    out.mass        = mass.size();
    out.tables      = mirrored.size();
    out.fixed       = used_bytes() - out.arena;
    out.workspace   = out.fixed - shape.staging_bytes - out.sketches - out.mass - out.tables;
    out.budget      = budget;
    out.n_slots     = n_slots;
    out.n_slots_max = n_slots_max;
    out.tail_slot   = n_tail_slots > 0 ? n_slots_max : 0;
    return out;
}

// ---- workspaces --------------------------------------------------------------------------------------------------------------

bool GpuEngine::reserve_workspace(int layer, const EngineView & view, bool has_lists) {
    // sized for the whole context, so that it never grows during decode
    EngineView whole = view;
    whole.n_cells = shape.n_cells;
    AttendProblem p = problem(layer, whole, {}, 0);
    p.n_tokens = std::min(p.n_tokens, kMaxQueryTokens);  // in a group
    if (!attend_device_supports(p)) {
        return fail_with("the kernels do not serve this graph");
    }
    const EngineWorkspace w = has_lists ? engine_list_workspace(shape, layer, whole, together_bytes, card.n_sm)
                                        : engine_whole_workspace(shape, layer, whole, ring(), card.n_sm);
    return grow(shares, w.shares) && grow(share_tops, w.share_tops) && grow(share_sums, w.share_sums) && grow(list_weights, w.list_weights) &&
           grow(list_copies, w.list_copies) && grow(lists, w.lists) && grow(list_lengths, w.list_lengths) &&
           grow(sample_words, w.sample_words) && grow(sights, w.sights) && grow(attend_workspace, w.attend);
}

}  // namespace edgekv::gpu
