// The device memory of a plane.
#include "cuda/engine/gpu_engine.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace edgekv::gpu {
namespace {

constexpr size_t kMinMargin   = 256u << 20;  // of VRAM that is left to others
constexpr size_t kMaxHalfRing = 128u << 20;

bool waits_for_nodes() {
    const char * value = std::getenv("EDGEKV_DEVICE_SYNC");
    return value && *value && std::strcmp(value, "0") != 0;
}

size_t align256(size_t n) { return (n + 255)/256*256; }

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
    index(index), shape(shape), main(stream), syncs(waits_for_nodes()) {
    layer_sketches.resize(shape.layers.size());
    mirrors.positions = shape.n_pages;
    mirrors.slots     = mirrors.positions + static_cast<size_t>(shape.n_stream)*shape.n_cells;
    mirrors.open      = mirrors.slots + n_entries();
    mirrors.pins      = mirrors.open + static_cast<size_t>(shape.n_stream)*groups_per_stream();
    mirrors.resolutions = mirrors.pins + 2*static_cast<size_t>(shape.n_stream)*groups_per_stream();
    mirrors.end       = mirrors.resolutions + shape.layers.size()*shape.n_heads;
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
                             " are served, of size 256 at most); --device cpu runs its attention on the processor");
        }
    }

    const size_t n_layers = shape.layers.size();
    const size_t n_groups = static_cast<size_t>(shape.n_stream)*groups_per_stream();
    if (!mirrored.reserve(mirrors.end*sizeof(int32_t)) || !prior.reserve(n_entries()*sizeof(float)) ||
        !mass.reserve(2*n_entries()*sizeof(float)) || !layer_table.reserve(n_layers*sizeof(edgekv_device_layer)) ||
        !totals.reserve(n_layers*shape.n_heads*sizeof(SampleTotals)) || !hits.reserve(n_layers*shape.n_heads*sizeof(AttendHits)) ||
        !state.reserve(sizeof(StepState)) || !stale.reserve(n_groups*sizeof(EngineStale)) || !fresh.reserve(shape.n_pages) ||
        !brought.reserve(static_cast<size_t>(shape.n_stream)*shape.n_heads*brought_stride()*sizeof(uint32_t))) {
        return false;
    }
    for (auto & upload : uploads) {
        if (!upload.host.reserve(kUpdates*sizeof(int2) + sizeof(StepState) + n_groups*sizeof(EngineStale)) ||
            !upload.updates.reserve(kUpdates*sizeof(int2))) {
            return false;
        }
    }

    // empty cells and pages, none in a slot or pinned, no group without a sketch: each is built with its first key
    std::vector<int32_t> empty(std::min(mirrors.end, size_t{1} << 20), -1);
    for (size_t i = 0; i < mirrors.end; i += empty.size()) {
        if (!copy(mirror(i), empty.data(), std::min(empty.size(), mirrors.end - i)*sizeof(int32_t))) {
            return false;
        }
    }
    const std::vector<int32_t> none(mirrors.end - mirrors.open);  // open, pinned, and with a resolution of its own
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
    if (n_bytes > buffer.size()) {
        renew();  // recorded graphs know the address of the old one
        use_device(index);
    }
    return buffer.reserve(n_bytes);
}

bool GpuEngine::reserve_sketches(SketchKind kind, bool & made) {
    made = false;
    for (size_t r = 0; r < shape.layers.size(); ++r) {
        LayerSketches & s = layer_sketches[r];
        if (s.kind == kind) {
            continue;
        }
        wait();
        s.data.release();
        s.kind         = SketchKind::none;
        s.stream_bytes = sketch_bytes(kind, shape.layers[r].head_dim, shape.layers[r].n_head_kv, groups_per_stream());
        if (!grow(s.data, s.stream_bytes*shape.n_stream)) {
            return false;
        }
        s.kind = kind;
        made   = made || kind != SketchKind::none;
    }
    return true;
}

bool GpuEngine::reserve_ring() {
    size_t widest = 0;
    for (const EngineLayer & layer : shape.layers) {
        widest = std::max(widest, layer.n_head_kv*shape.slot_bytes);
    }
    if (ring_memory.size() || widest == 0) {
        return true;
    }

    Device now;
    if (!device(index, now)) {
        return false;
    }
    const size_t pages   = shape.pages_per_stream;
    const size_t allowed = (shape.budget_bytes ? shape.budget_bytes : now.free_bytes)/16;  // for each half
    const size_t fit     = std::min({ pages, allowed/widest, kMaxHalfRing/widest });
    const size_t half    = std::max<size_t>(fit, 1);  // pages
    return grow(ring_memory, 2*half*widest) && grow(ring_held, 2*half*shape.n_heads);
}

size_t GpuEngine::used_bytes() const {
    size_t n = shape.staging_bytes;
    for (const DeviceBuffer * b : { &mirrored, &prior, &mass, &layer_table, &slots_memory, &totals, &hits, &state, &stale, &ring_memory,
                                    &ring_held, &fresh, &brought, &sights, &shares, &share_tops, &share_sums, &lists, &list_weights,
                                    &list_lengths, &select_scratch, &attend_workspace, &uploads[0].updates, &uploads[1].updates }) {
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
        renew();
    }
    n_slots = n_slots_max = n_tail_slots = 0;
    if (!use_device(index) || !device(index, now)) {
        return false;
    }

    const size_t used   = used_bytes();
    const size_t margin = std::max(kMinMargin, now.total_bytes/20);
    size_t room = now.free_bytes > margin ? now.free_bytes - margin : 0;
    if (shape.budget_bytes) {
        if (shape.budget_bytes < used) {
            return fail_with("the KV budget of " + mebibytes(shape.budget_bytes) + " on the GPU is too small: sketches, tables and buffers "
                             "for prompts take " + mebibytes(used) + " at this context; give --kv-vram at least that, a smaller context, or a "
                             "q8_0 cache");
        }
        room = shape.budget_bytes - used;
        if (room > now.free_bytes) {
            return fail_with("the GPU has " + mebibytes(now.free_bytes) + " free where the KV budget needs " + mebibytes(room) +
                             " more; lower --kv-vram by " + mebibytes(room - now.free_bytes) + ", offload fewer layers, or use auto");
        }
    }

    size_t n_pages = 0;
    for (const EngineLayer & layer : shape.layers) {
        n_pages += static_cast<size_t>(layer.n_head_kv)*shape.n_pages;
    }
    n_tail_slots = n_tail*shape.slot_bytes <= room/4 ? n_tail : 0;
    room        -= n_tail_slots*shape.slot_bytes;
    n_slots_max  = static_cast<int>(std::min<size_t>({ n_pages, room/shape.slot_bytes, static_cast<size_t>(n_wanted),
                                                       static_cast<size_t>(std::numeric_limits<int>::max())/2 }));
    if (!slots_memory.reserve((static_cast<size_t>(n_slots_max) + n_tail_slots)*shape.slot_bytes)) {
        n_slots_max = n_tail_slots = 0;
        return false;
    }
    budget = shape.budget_bytes ? shape.budget_bytes : used_bytes();
    return true;
}

bool GpuEngine::set_slots(int n) {
    if (n > n_slots_max) {
        return fail_with("the arena on the GPU has room for " + std::to_string(n_slots_max) + " pages, not for " + std::to_string(n));
    }
    n_slots = n;
    return true;
}

EngineBytes GpuEngine::bytes() const {
    EngineBytes out = {};
    for (const auto & s : layer_sketches) {
        out.sketches += s.data.size();
    }
    out.arena       = slots_memory.size();
    out.mass        = mass.size();
    out.tables      = mirrored.size() + prior.size();
    out.fixed       = used_bytes() - out.arena;
    out.workspace   = out.fixed - shape.staging_bytes - out.sketches - out.mass - out.tables;
    out.budget      = budget;
    out.n_slots     = n_slots;
    out.n_slots_max = n_slots_max;
    out.tail_slot   = n_tail_slots > 0 ? n_slots_max : 0;
    return out;
}

// ---- workspaces --------------------------------------------------------------------------------------------------------------

// Shares, rows and logits of a token grow with the context. A long context serves fewer tokens at a time and reads the sketches more often,
// which lie on the device.
int GpuEngine::most_tokens(int layer) const {
    const EngineLayer & r        = shape.layers[layer];
    const size_t      of_list  = list_stride()*(sizeof(int32_t) + sizeof(float));
    const size_t      of_query = list_stride()*(sizeof(uint16_t) + sizeof(float));
    return static_cast<int>(std::clamp<size_t>(together_bytes/(r.n_head_kv*of_list + r.n_head*of_query), 1, kMaxQueryTokens));
}

bool GpuEngine::reserve_workspace(int layer, const EngineView & view, SketchKind kind, bool has_lists) {
    const EngineLayer & r = shape.layers[layer];

    // for the whole context, so that it need not grow with it
    EngineView whole = view;
    whole.n_cells = shape.n_cells;
    EngineAttend args = {};
    size_t n_bytes = 0;
    if (!has_lists) {
        if (!attend_device_supports(whole_groups_of(layer, whole, args, 0, n_bytes).front().problem)) {
            return fail_with("the kernels do not serve this graph");
        }
        return grow(attend_workspace, n_bytes);
    }

    const edgekv_selection any = {};
    args.selection = &any;
    size_t n_tokens = 0;  // of all streams of the widest group
    for (const Group & group : groups_of(whole, args, layer)) {
        n_tokens = std::max(n_tokens, static_cast<size_t>(group.view.n_streams)*group.view.n_tokens);
        const AttendProblem p = problem(layer, group.view, group.args, 0);
        if (!attend_device_supports(p)) {
            return fail_with("the kernels do not serve this graph");
        }
        n_bytes = std::max(n_bytes, attend_device_workspace_bytes(p, list_splits(p), true));
    }
    const size_t n_lists  = n_tokens*r.n_head_kv;
    const size_t n_queries = n_tokens*r.n_head;  // query rows
    const size_t n_groups = groups_per_stream();
    const bool   sketched = kind != SketchKind::none;
    const size_t scratch  = sketched ? sample_device_scratch_bytes(static_cast<int>(n_lists), groups_per_stream(), r.n_head/r.n_head_kv)
                                     : choose_device_scratch_bytes(static_cast<int>(n_lists), shape.pages_per_stream);
    return (!sketched || (grow(shares, n_queries*list_stride()*sizeof(uint16_t)) && grow(share_tops, n_queries*n_groups*sizeof(float)) &&
                          grow(share_sums, n_queries*n_groups*sizeof(float)) && grow(list_weights, n_lists*list_stride()*sizeof(float)))) &&
           grow(lists, n_lists*list_stride()*sizeof(int32_t)) && grow(list_lengths, n_lists*sizeof(int32_t)) &&
           grow(select_scratch, scratch) && grow(sights, static_cast<size_t>(view.n_streams)*view.n_tokens*n_groups*sizeof(Sight)) &&
           grow(attend_workspace, n_bytes);
}

}  // namespace edgekv::gpu
