// The nodes of a graph enqueue kernels. They may run while a CUDA graph is recorded, and a replay does not call them. So
// arguments and launch shapes depend on the view and on addresses that live as long as the engine (its generation is among the node's
// parameters). ggml's backend records each split by itself, so work that a node forks onto the side stream is joined by a node of the
// same graph, and no graph waits for another's event.
#include "cuda/engine/gpu_engine.h"

#include <algorithm>

namespace edgekv::gpu {

// ---- store -------------------------------------------------------------------------------------------------------------------

StoreArgs GpuEngine::store_args(int layer, const EngineView & view, const EngineStore & args) const {
    const EngineLayer & r = shape.layers[layer];
    StoreArgs store = {};
    store.head_dim  = r.head_dim;
    store.n_head_kv = r.n_head_kv;
    store.n_tokens  = view.n_tokens*view.n_streams;
    store.cells_per_stream = shape.n_cells;
    store.k = { { args.k, args.k_stride_token, args.k_stride_head }, args.k_idxs, r.k_type, { r.k, r.k_stride_cell, r.k_stride_head }, {} };
    store.v = { { args.v, args.v_stride_token, args.v_stride_head }, args.v_idxs, r.v_type, { r.v, r.v_stride_cell, r.v_stride_head }, {} };
    if (args.piece.layer >= 0) {
        store.k.second = { staged_rows(args.piece, false), args.piece.first_head, args.piece.n_heads };
        store.v.second = { staged_rows(args.piece, true), args.piece.first_head, args.piece.n_heads };
    }
    store.arena = page_slots(layer, 0);
    if (args.sketch) {
        SketchBuild & build = store.build;
        build.sketches     = sketch_array(layer, 0);
        build.home         = sketch_home(layer, 0);
        build.stale        = stale.as<StaleGroup>();
        build.n_stale      = &state.as<StepState>()->n_stale;
        build.hot          = hot_rows(layer);
        build.n_expected   = view.n_streams*(view.n_tokens/kGroupCells + 1);
        if (args.piece.n_heads == r.n_head_kv && view.n_streams == shape.n_stream) {
            build.home.k.data  = args.piece.k;
            build.home.brought = true;
        }
    }
    return store;
}

// Whether a piece is staged by a later node of this graph than one of `layer`.
bool GpuEngine::comes(const EnginePiece & next, int layer) const {
    return next.layer != layer ? comes(next.layer, graph.stores) : graph.staged.empty() || graph.staged[layer] >= next.first_head;
}

// Rows of K or V of a piece in the staging buffer.
CellRows GpuEngine::staged_rows(const EnginePiece & piece, bool value) const {
    const EngineLayer & r     = shape.layers[piece.layer];
    const size_t        bytes = value ? r.v_row_bytes : r.k_row_bytes;
    return { value ? piece.v : piece.k, piece.n_heads*bytes, bytes };
}

// Copies the cells in view of a piece's heads to the staging buffer.
void GpuEngine::stage_piece(const EnginePiece & piece, const EngineView & view, Stream stream) {
    const EngineLayer & r    = shape.layers[piece.layer];
    EdgekvDeviceLayer   home = home_of(r);
    home.k      += piece.first_head*r.k_stride_head;
    home.v      += piece.first_head*r.v_stride_head;
    home.n_heads = piece.n_heads;
    CellRows k = staged_rows(piece, false), v = staged_rows(piece, true);
    for (int s = view.first_stream; s < view.first_stream + view.n_streams; ++s) {
        const size_t first = static_cast<size_t>(s)*shape.n_cells;
        launch_stage({ home, s, view.n_cells, shape.page_tokens, slots_of(piece.layer, s) + piece.first_head*slots_stride(), slots_stride(),
                       slots_memory.data(), shape.slot_bytes, { k.at(first, 0), k.stride_cell, k.stride_head },
                       { v.at(first, 0), v.stride_cell, v.stride_head } }, stream);
    }
}

// Waits for a piece whose copy was announced, or copies it now.
void GpuEngine::take_piece(const EnginePiece & piece, const EngineView & view, Stream stream) {
    if (announced.layer == piece.layer && announced.first_head == piece.first_head) {
        event_wait(stream, staged);
    } else {
        stage_piece(piece, view, stream);
    }
    announced = kNoPiece;
}

// It travels while what lies in the buffer's other half is attended; its own half was last read before `fork`.
void GpuEngine::announce(const EnginePiece & next, const EngineView & view, Stream stream) {
    event_record(fork, stream);
    event_wait(side, fork);
    stage_piece(next, view, side);
    event_record(staged, side);
    announced = next;
}

void GpuEngine::store(int layer, const EngineView & view, const EngineStore & args, void * stream) {
    use_device(index);
    if (args.piece.layer >= 0) {
        take_piece(args.piece, view, stream);
    }
    launch_store(store_args(layer, view, args), stream);
    if (comes(args.next, layer)) {
        announce(args.next, view, stream);
    }
}

void GpuEngine::stage(const EnginePiece & piece, const EnginePiece & next, const EngineView & view, void * stream) {
    use_device(index);
    take_piece(piece, view, stream);
    if (comes(next, piece.layer)) {
        announce(next, view, stream);
    }
}

SketchArray GpuEngine::sketch_array(int layer, int first_stream) const {
    const LayerSketches & s = layer_sketches[layer];
    const EngineLayer &   r = shape.layers[layer];
    return { r.head_dim, r.n_head_kv, groups_per_stream(), s.data.data() + first_stream*s.stream_bytes, s.stream_bytes };
}

SketchHome GpuEngine::sketch_home(int layer, int first_stream) const {
    const EngineLayer & r = shape.layers[layer];
    return { r.k_type, { r.k + first_stream*r.k_stride_stream, r.k_stride_cell, r.k_stride_head }, r.k_stride_stream, false,
             page_slots(layer, first_stream) };
}

PageSlots GpuEngine::page_slots(int layer, int first_stream) const {
    return { slots_memory.data(), shape.slot_bytes, shape.layers[layer].v_offset, slots_of(layer, first_stream), slots_stride(), shape.page_tokens,
             shape.pages_per_stream };
}

HotRows GpuEngine::hot_rows(int layer) const {
    if (rows.n_sets == 0) {
        return {};
    }
    char * const at = slots_memory.data() + rows.offset;
    const uint64_t n_rows = static_cast<uint64_t>(shape.n_heads)*shape.n_stream*shape.n_cells;
    return { reinterpret_cast<unsigned long long *>(at), rows.n_sets, at + rows.entry_bytes(), rows.stride, rows.v_offset, layer*n_rows,
             shape.n_stream, shape.n_cells };
}

// ---- attend ------------------------------------------------------------------------------------------------------------------

AttendProblem GpuEngine::problem(int layer, const EngineView & view, const EngineAttend & args, int s) const {
    const EngineLayer & r      = shape.layers[layer];
    const int         stream = view.first_stream + s;
    const size_t      first  = static_cast<size_t>(s)*view.n_tokens;

    AttendProblem p = engine_problem(shape, layer, view);

    p.q              = args.query.q ? args.query.q + first*args.query.q_stride_token : nullptr;
    p.q_stride_token = args.query.q ? args.query.q_stride_token : static_cast<size_t>(r.n_head)*r.head_dim*sizeof(float);
    p.q_stride_head  = args.query.q ? args.query.q_stride_head : r.head_dim*sizeof(float);

    p.k             = (args.k_staging ? args.k_staging : r.k) + stream*r.k_stride_stream;
    p.k_stride_cell = r.k_stride_cell;
    p.k_stride_head = r.k_stride_head;
    p.v             = (args.v_staging ? args.v_staging : r.v) + stream*r.v_stride_stream;
    p.v_stride_cell = r.v_stride_cell;
    p.v_stride_head = r.v_stride_head;

    p.mask_type         = args.query.mask_type;
    p.mask              = args.query.mask ? args.query.mask + s*args.query.mask_stride_stream : nullptr;
    p.mask_stride_token = args.query.mask_stride_token;
    p.sinks             = args.query.sinks;
    p.scale             = args.query.scale;
    p.softcap           = args.query.softcap;

    p.out_stride_head  = r.head_dim*sizeof(float);
    p.out_stride_token = r.n_head*p.out_stride_head;
    p.out              = args.out ? args.out + first*p.out_stride_token : nullptr;

    const size_t entries = layer*n_layer_entries() + static_cast<size_t>(stream)*shape.pages_per_stream;
    if (args.observe) {
        p.mass_max = mass.as<float>() + entries;
        p.mass_sum = mass.as<float>() + n_entries() + entries;
    }
    p.mass_stride = shape.n_pages;

    if (args.selection) {
        const size_t list = first*r.n_head_kv;
        p.rows.cells   = lists.as<int32_t>() + list*list_stride();
        p.rows.weights = list_weights.as<float>() + list*list_stride();
        p.rows.n_rows  = list_lengths.as<int32_t>() + list;
        p.rows.stride  = list_stride();
        if (keeps_rows(args)) {
            const HotRows hot = hot_rows(layer);
            p.copies = { hot.data, hot.stride, hot.v_offset, list_copies.as<int32_t>() + list*list_stride() };
        }
        p.error_every  = args.selection->error_every;
        p.error_turn   = layer;
        p.hits         = hits.as<AttendHits>() + static_cast<size_t>(layer)*shape.n_heads;
    }

    p.arena.data         = slots_memory.data();
    p.arena.slot_bytes   = shape.slot_bytes;
    p.arena.v_offset     = r.v_offset;
    p.arena.slots        = slots_of(layer, stream);
    p.arena.slots_stride = shape.n_pages;
    return p;
}

// Copies the rows that a group's lists name in one stream.
void GpuEngine::bring_rows(int layer, const EngineView & view, const EngineAttend & args, int s, Stream stream) {
    const EngineLayer & r        = shape.layers[layer];
    const int         of_cache = view.first_stream + s;
    BringProblem p = {};
    p.layer          = home_of(r);
    p.stream         = of_cache;
    p.page_tokens    = shape.page_tokens;
    p.cells          = lists.as<int32_t>();
    p.n_rows         = list_lengths.as<int32_t>();
    p.list_stride    = list_stride();
    p.n_lists        = view.n_tokens*r.n_head_kv;
    p.slots          = slots_of(layer, of_cache);
    p.slots_stride   = shape.n_pages;
    p.brought        = brought.as<uint32_t>() + static_cast<size_t>(of_cache)*shape.n_heads*brought_stride();
    p.brought_stride = brought_stride();
    p.k              = args.k_staging + of_cache*r.k_stride_stream;
    p.v              = args.v_staging + of_cache*r.v_stride_stream;
    launch_bring(p, stream);
}

void GpuEngine::attend_lists(int layer, const EngineView & view, const EngineAttend & args, int s, Stream stream) {
    const AttendProblem p = problem(layer, view, args, s);
    AttendPart part = {};
    part.brought  = args.k_staging != nullptr;
    part.n_splits = engine_list_splits(shape, p, card.n_sm);
    part.tickets  = tickets.as<uint32_t>();
    part.n_ubatch = &state.as<StepState>()->n_ubatch;
    launch_attend(p, part, attend_workspace.data(), part.n_splits, stream);
    launch_attend_merge(p, part, attend_workspace.data(), part.n_splits, stream);
}

void GpuEngine::attend_all(int layer, const EngineView & view, const EngineAttend & args, int s, Stream stream) {
    const WholeGroups whole = engine_whole_groups(shape, layer, view, ring(), card.n_sm);
    const int  n_parts  = whole.n_parts;
    const int  of_cache = view.first_stream + s;
    const bool streams  = ring_memory.size() > 0;

    std::vector<AttendProblem> problems;  // of the groups
    for (const WholeGroup & group : whole.groups) {
        AttendProblem p = problem(layer, view, args, s);
        p.n_tokens = group.end - group.begin;
        p.q       += group.begin*p.q_stride_token;
        p.mask    += group.begin*p.mask_stride_token;
        p.out     += group.begin*p.out_stride_token;
        if (!group.observed) {
            p.mass_max = p.mass_sum = nullptr;
        }
        problems.push_back(p);
    }

    if (args.k_staging) {
        EngineView one = view;
        one.first_stream = of_cache;
        one.n_streams    = 1;
        stage_piece({ layer, 0, shape.layers[layer].n_head_kv, args.k_staging, args.v_staging }, one, stream);
    }
    for (int chunk = 0; chunk < n_parts; ++chunk) {
        AttendPart part = {};
        part.first_page = chunk*ring_pages(layer);
        part.end_page   = std::min(part.first_page + ring_pages(layer), pages_in_view(view));
        part.brought    = args.k_staging != nullptr;

        int half = 0;
        if (streams) {
            const Fill wanted = { layer, of_cache, chunk };
            while (!filling.empty() && !(filling.front().first == wanted)) {  // drops a layer that was announced but did not come
                event_wait(stream, half_filled[filling.front().second]);
                event_record(half_free[filling.front().second], stream);
                filling.pop_front();
            }
            if (filling.empty()) {
                fill_ring(wanted, view, stream);
            }
            half = filling.front().second;
            filling.pop_front();
            // the other half fills meanwhile
            if (filling.empty() && chunk + 1 < n_parts) {
                fill_ring({ layer, of_cache, chunk + 1 }, view, stream);
            }
            event_wait(stream, half_filled[half]);
            part.ring = ring_of(layer, half, view, chunk);
        }
        for (size_t g = 0; g < problems.size(); ++g) {
            const WholeGroup & group = whole.groups[g];
            part.first_partial = chunk*group.n_splits;
            part.n_splits      = group.n_splits;
            launch_attend(problems[g], part, attend_workspace.data() + group.offset, n_parts*group.n_splits, stream);
        }
        if (streams) {
            event_record(half_free[half], stream);
        }
    }
    AttendPart all = {};
    all.end_page = pages_in_view(view);
    for (size_t g = 0; g < problems.size(); ++g) {
        const WholeGroup & group = whole.groups[g];
        launch_attend_merge(problems[g], all, attend_workspace.data() + group.offset, n_parts*group.n_splits, stream);
    }
}

void GpuEngine::attend(int layer, const EngineView & view, const EngineAttend & given, void * stream) {
    use_device(index);
    EngineAttend args = given;
    if (engine_groups(view.n_tokens) == 1 || (!args.selection && ring_memory.size())) {
        args.k_staging = args.v_staging = nullptr;  // read in place, or through the ring
    }
    const std::vector<Group> groups   = args.selection ? groups_of(view, args, layer) : std::vector<Group>();
    const StoreArgs          stored   = args.store ? store_args(layer, view, *args.store) : StoreArgs{};
    const bool               together = args.store && groups.size() == 1;  // stored by the launch that scans
    if (args.store && !together) {
        launch_store(stored, stream);
    }
    if (args.selection) {
        if (view.leads) {
            find_sight(view, args, stream);
        }
        if (args.k_staging) {
            zero_async(brought.data(), brought.size(), stream);
        }
        for (const Group & group : groups) {
            select(layer, group, together ? &stored : nullptr, stream);
            if (args.k_staging) {
                bring_rows(layer, group.view, args, 0, stream);
            }
            for (int s = 0; s < group.view.n_streams; ++s) {
                attend_lists(layer, group.view, group.args, s, stream);
            }
        }
        return;
    }

    if (view.leads && ring_memory.size()) {
        mark_fresh(view, args.query.k_idxs, stream);
    }
    for (int s = 0; s < view.n_streams; ++s) {
        attend_all(layer, view, args, s, stream);
    }
    // the first pages of the next layer travel while the rest of this layer computes
    if (ring_memory.size() && comes(args.next_layer, graph.attends)) {
        fill_ring({ args.next_layer, view.first_stream, 0 }, view, stream);
        if (n_chunks(args.next_layer, view) > 1) {
            fill_ring({ args.next_layer, view.first_stream, 1 }, view, stream);
        }
    }
}

}  // namespace edgekv::gpu
