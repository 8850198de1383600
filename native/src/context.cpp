#include "context.h"
#include "nodes.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace edgekv {

static bool cell_type(ggml_type type, CellType & out) {
    switch (type) {
        case GGML_TYPE_F16:  out = CellType::f16;  return true;
        case GGML_TYPE_Q8_0: out = CellType::q8_0; return true;
        default:             return false;
    }
}

// why a layer cannot be served, or EDGEKV_LAYER_HOOKED
static edgekv_layer_state classify(const llama_edgekv_layer & seam) {
    if (!hooks_enabled()) {
        return EDGEKV_LAYER_DISABLED;
    }

    switch (seam.kind) {
        case LLAMA_EDGEKV_LAYER_ATTENTION: break;
        case LLAMA_EDGEKV_LAYER_SWA:       return EDGEKV_LAYER_SWA;
        case LLAMA_EDGEKV_LAYER_RECURRENT: return EDGEKV_LAYER_RECURRENT;
        case LLAMA_EDGEKV_LAYER_MLA:       return EDGEKV_LAYER_MLA;
        case LLAMA_EDGEKV_LAYER_SHARED:    return EDGEKV_LAYER_SHARED;
        case LLAMA_EDGEKV_LAYER_NONE:      return EDGEKV_LAYER_NO_CACHE;
    }

    if (!seam.host) {
        return EDGEKV_LAYER_DEVICE;
    }
    if (seam.v_transposed) {
        return EDGEKV_LAYER_V_TRANSPOSED;
    }
    if (seam.alibi) {
        return EDGEKV_LAYER_ALIBI;
    }

    CellType k_type, v_type;
    if (!cell_type(seam.k->type, k_type) || !cell_type(seam.v->type, v_type)) {
        return EDGEKV_LAYER_CACHE_TYPE;
    }
    if (seam.head_dim_k != seam.head_dim_v || seam.n_head % std::max(1, seam.n_head_kv) != 0 ||
        seam.n_head > kMaxGroup*std::max(1, seam.n_head_kv) || seam.n_head_kv > kMaxHeadsKv ||
        !attend_supports(seam.head_dim_k, k_type, v_type)) {
        return EDGEKV_LAYER_HEAD_DIM;
    }

    return EDGEKV_LAYER_HOOKED;
}

}  // namespace edgekv

using namespace edgekv;

edgekv_context::edgekv_context(llama_context * lctx, const edgekv_params & params) :
    lctx(lctx), params(params), wanted_mode(params.mode), wanted_observe(params.observe),
    wanted_observe_prompts(params.observe_prompts), sketched(false), attended(Attended::none), n_last_observed(0) {
    llama_edgekv_cells cells;
    if (llama_edgekv_get_cells(lctx, 0, &cells)) {
        n_stream         = (int) cells.n_stream;
        n_cells          = (int) cells.n_cells;
        pages_per_stream = (n_cells + params.page_tokens - 1)/params.page_tokens;
        n_pages          = n_stream*pages_per_stream;
    }

    for (int il = 0; il < llama_edgekv_n_layer(lctx); ++il) {
        auto layer = std::make_unique<Layer>();
        layer->owner = this;
        layer->il    = il;

        llama_edgekv_get_layer(lctx, il, &layer->seam);

        auto & info = layer->info;
        info.state     = classify(layer->seam);
        info.row       = -1;
        info.n_head    = layer->seam.n_head;
        info.n_head_kv = layer->seam.n_head_kv;
        info.head_dim  = layer->seam.head_dim_k;
        info.k_type    = layer->seam.k ? (int) layer->seam.k->type : -1;
        info.v_type    = layer->seam.v ? (int) layer->seam.v->type : -1;
        if (info.state == EDGEKV_LAYER_HOOKED) {
            info.row = n_rows++;
            n_heads  = std::max(n_heads, info.n_head_kv);
        }

        layers.push_back(std::move(layer));
    }

    workspaces.resize(n_stream);
    select_workspaces.resize(n_stream);
    sights.resize(n_stream);
    lists.resize(n_stream);

    HierarchyShape shape = { n_rows, n_heads, n_stream, n_cells, params.page_tokens, pages_per_stream, n_pages, 0 };
    for (const auto & layer : layers) {
        if (layer->info.row >= 0) {
            const auto & seam = layer->seam;
            const size_t rows = ggml_row_size(seam.k->type, seam.head_dim_k) + ggml_row_size(seam.v->type, seam.head_dim_v);
            shape.slot_bytes = std::max(shape.slot_bytes, (rows*params.page_tokens + 63)/64*64);
            layer->lists.resize(n_stream);
            layer->hits.resize((size_t) n_stream*layer->info.n_head_kv);
            layer->selected.resize((size_t) n_stream*layer->info.n_head_kv);
        }
    }
    hierarchy.shape(shape);
    if (params.mode == EDGEKV_MODE_EVICT) {
        llama_edgekv_allow_gaps(lctx);
    }
    if (params.placement.kind == EDGEKV_DEVICE_HOST && !reserve_host()) {
        throw std::bad_alloc();
    }
}

bool edgekv_context::reserve_host() {
    return (params.mode != EDGEKV_MODE_SPARSE || reserve_sparse()) && observation.reserve(2*sizeof(float)*n_rows*n_heads*n_pages);
}

bool edgekv_context::reserve_sparse() {
    if (plane) {
        bool       made = false;
        const bool had  = plane->reserve_sketches((SketchKind) params.selection.sketch, made);
        if (made) {
            hierarchy.mark_all_stale();
        }
        return had;
    }

    for (const auto & layer : layers) {
        const int row = layer->info.row;
        if (row >= 0 && !hierarchy.reserve_sketches(row, (SketchKind) params.selection.sketch, layer->info.head_dim, layer->info.n_head_kv)) {
            return false;
        }
    }
    if (params.selection.prompt_coverage > 0.0f && !read_sparsely) {
        read_sparsely.reset(new (std::nothrow) std::atomic<uint8_t>[(size_t) n_stream*n_cells]());
        return read_sparsely != nullptr;
    }

    return true;
}

edgekv_status edgekv_context::set_selection(const edgekv_selection & selection) {
    const edgekv_selection before = params.selection;

    params.selection = selection;
    if (wanted_mode.load(std::memory_order_relaxed) == EDGEKV_MODE_SPARSE && !reserve_sparse()) {
        params.selection = before;
        return EDGEKV_NO_MEMORY;
    }
    if (plane) {
        plane->renew();
    }
    llama_edgekv_invalidate_graph(lctx);

    return EDGEKV_OK;
}

void edgekv_context::count_runs(int every) {
    run_every     = every;
    run_delivered = true;  // what was summed up so far is not asked for any more
}

bool edgekv_context::selects(const Layer & layer, int n_cells_view) const {
    if (params.mode == EDGEKV_MODE_EVICT) {
        return drops && layer.k_idxs;
    }

    return params.mode == EDGEKV_MODE_SPARSE && layer.k_idxs && n_cells_view > params.selection.exact_tokens;
}

bool edgekv_context::decodes_elsewhere() const {
    const void * thread = decoder.load(std::memory_order_acquire);

    return thread && thread != this_thread_name();
}

void edgekv_context::begin_ubatch(int n_tokens_ubatch) {
    n_tokens = n_tokens_ubatch;
    n_ubatch += 1;
    leader_built = false;
    seen.clear();
    sketched.store(false, std::memory_order_relaxed);

    const edgekv_mode mode = wanted_mode.load(std::memory_order_acquire);
    hierarchy.sync(lctx, plane && mode != EDGEKV_MODE_OFF ? n_tokens : 0, mode == EDGEKV_MODE_SPARSE);

    bool clear = false;
    if (run_delivered) {
        clear = observation_dirty;
        if (clear && !plane) {
            clear_observation();
        }
        observation_dirty = observation_dirty && !clear;
        pending           = {};
        run_delivered     = false;
    }
    attended.store(Attended::none, std::memory_order_relaxed);
    n_last_observed.store(0, std::memory_order_relaxed);

    const bool        observe = wanted_observe.load(std::memory_order_relaxed);
    const bool        prompts = wanted_observe_prompts.load(std::memory_order_relaxed);
    const bool        dropped = hierarchy.n_dropped() > 0;
    const int         threads = std::max(llama_n_threads(lctx), llama_n_threads_batch(lctx));

    // the graph depends on the mode and on what is observed, the workspace on the number of threads
    if (mode != params.mode || observe != params.observe || prompts != params.observe_prompts || dropped != drops ||
        threads > n_threads) {
        llama_edgekv_invalidate_graph(lctx);
        graph = {};
    }

    params.mode    = mode;
    params.observe = observe;
    params.observe_prompts = prompts;
    drops     = dropped;
    n_threads      = std::max(n_threads, threads);

    graph.built = false;
    if (plane) {
        begin_plane(clear);
    }
}

bool edgekv_context::end_ubatch(bool ok) {
    if (plane) {
        attended.store(graph.attends ? Attended::decode : Attended::none, std::memory_order_relaxed);
        sketched.store(graph.sketches, std::memory_order_relaxed);
        n_last_observed.store(graph.n_observed < n_tokens ? graph.n_observed : 0, std::memory_order_relaxed);
        plane->end();
        const EngineView & staged = graph.staged;
        const bool        all    = ok && graph.n_staged == n_rows;
        hierarchy.end_fills([&](int stream, int page) {
            return all && stream >= staged.first_stream && stream < staged.first_stream + staged.n_streams &&
                   std::min((page + 1)*params.page_tokens, n_cells) <= staged.n_cells;
        });
    }
    const Attended by    = attended.load(std::memory_order_relaxed);
    const bool hooked    = by != Attended::none;
    const int n_last     = n_last_observed.load(std::memory_order_relaxed);
    const int n_observed = n_last > 0 ? n_last : by == Attended::decode && params.observe ? n_tokens : 0;
    observation_dirty = observation_dirty || hooked || n_last > 0;

    if (ok && sketched.load(std::memory_order_relaxed)) {
        hierarchy.sketches_are_true();
    }

    if (ok) {
        pending.n_ubatches  += 1;
        pending.n_tokens    += n_tokens;
        if (hooked) {
            pending.n_ubatches_hooked += 1;
            pending.n_tokens_hooked   += n_tokens;
        }
        pending.n_tokens_observed += n_observed;
    }
    // a prompt's ubatch ends the run
    run_delivered = ok && (by != Attended::decode || n_last > 0 || pending.n_ubatches_hooked >= run_every || lacks_room());
    if (run_delivered) {
        hierarchy.changes_delivered();
    }

    return run_delivered || (ok && watched);
}

// the next llama_decode may find no cells for a batch, though the context has tokens left
bool edgekv_context::lacks_room() const {
    if (n_cells >= (int) llama_n_ctx_seq(lctx)) {
        return false;
    }
    for (int s = 0; s < n_stream; ++s) {
        llama_edgekv_cells cells;
        if (llama_edgekv_get_cells(lctx, (uint32_t) s, &cells) && cells.n_cells - cells.n_used < llama_n_batch(lctx)) {
            return true;
        }
    }

    return false;
}

Layer * edgekv_context::served_layer(int il, const ggml_tensor * k) {
    if (params.mode == EDGEKV_MODE_OFF || il < 0 || il >= (int) layers.size()) {
        return nullptr;
    }

    Layer * layer = layers[il].get();
    if (layer->info.state != EDGEKV_LAYER_HOOKED || k->view_src != layer->seam.k) {
        return nullptr;
    }

    return layer;
}

bool edgekv_context::attends(const ggml_tensor * k, int64_t n_tokens_graph) const {
    const int64_t n_stream_graph = k->ne[3];

    return n_tokens_graph%n_stream_graph == 0 && n_tokens_graph/n_stream_graph <= (plane ? kEngineTokens : kMaxQueryTokens);
}

bool edgekv_context::sketches() const {
    return params.mode == EDGEKV_MODE_SPARSE && params.selection.sketch != EDGEKV_SKETCH_NONE;
}

bool edgekv_context::observes_prompts() const {
    return params.observe && params.observe_prompts && (params.mode == EDGEKV_MODE_SPARSE || params.mode == EDGEKV_MODE_EVICT);
}

bool edgekv_context::reserve_prompt(size_t n_bytes) {
    prompt_workspaces.resize(n_threads);
    for (auto & workspace : prompt_workspaces) {
        if (!workspace.reserve(n_bytes)) {
            return false;
        }
    }

    return true;
}

bool edgekv_context::reserve_workspace(AttendProblem problem, int n_stream_graph) {
    if (params.observe) {
        problem.mass_max = problem.mass_sum = reinterpret_cast<float *>(observation.data());
    }

    const size_t n_bytes = attend_workspace_bytes(problem, n_threads);

    for (int s = 0; s < n_stream_graph; ++s) {
        if (!workspaces[s].reserve(n_bytes)) {
            return false;
        }
    }

    return true;
}

float * edgekv_context::mass(int which, const Layer & layer, int stream) const {
    if (!params.observe) {
        return nullptr;
    }

    float * base = reinterpret_cast<float *>(observation.data());

    return base + ((size_t) (which*n_rows + layer.info.row)*n_heads)*n_pages + (size_t) stream*pages_per_stream;
}

float * edgekv_context::mass_max(const Layer & layer, int stream) const {
    return mass(0, layer, stream);
}

float * edgekv_context::mass_sum(const Layer & layer, int stream) const {
    return mass(1, layer, stream);
}

void edgekv_context::clear_observation() {
    observation.zero(0, 2*sizeof(float)*n_rows*n_heads*n_pages);
}
