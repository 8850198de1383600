#include "attention/cpu/host_plane.h"

#include "state/state.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>

namespace edgekv {

bool RowLists::reserve(int n_tokens_run, int n_head_kv, size_t most_rows, bool copied) {
    n_tokens = n_tokens_run;
    stride   = most_rows;
    const size_t n_lists = static_cast<size_t>(n_tokens) * n_head_kv;
    return cells.reserve(n_lists * stride * sizeof(int32_t)) && weights.reserve(n_lists * stride * sizeof(float)) &&
           n_rows.reserve(n_lists * sizeof(int32_t)) && (!copied || slots.reserve(n_lists * stride * sizeof(int32_t)));
}

HostPlane::HostPlane(State & ctx) : Plane(ctx), graph(ctx.hooked.size(), 0), ahead(ctx), disk(ctx) {
    const PageShape & shape = ctx.shape;
    sketches.shape(shape);
    drops.shape(shape);
    gone.shape(shape);
    reached.resize(shape.n_stream);
    n_copied.resize(shape.n_stream);
    copied.resize(shape.n_stream);
    // at most one run of a stream selects
    const int n_sequences = static_cast<int>(llama_n_seq_max(ctx.lctx));
    select_workspaces.resize(shape.n_stream);
    sights.resize(shape.n_stream);
    lists.resize(shape.n_stream);
    for (const Layer * served : ctx.hooked) {
        auto layer = std::make_unique<HostLayer>();
        layer->plane = this;
        layer->layer = served;
        layer->index   = served->info.index;
        layer->lists.resize(shape.n_stream);
        layer->hits.resize(static_cast<size_t>(shape.n_stream) * served->info.n_head_kv);
        layer->selected.resize(static_cast<size_t>(n_sequences) * served->info.n_head_kv);
        layers.push_back(std::move(layer));
    }
    for (const auto & layer : ctx.layers) {
        if (layer->whole()) {
            wholes.push_back({ this, layer->il, static_cast<int>(wholes.size()) });
        }
    }
}

// ---- memory and settings -----------------------------------------------------------------------------------------------------

bool HostPlane::reserve() {
    ahead.enter(ctx.params.mode != EDGEKV_MODE_OFF);
    if (ctx.params.mode == EDGEKV_MODE_EVICT) {
        give_back_from_now();
    }
    return (!ctx.may_select() || reserve_sketches()) &&
           observation.reserve(observation_bytes(ctx.shape));
}

bool HostPlane::reserve_sketches() {
    for (const auto & layer : layers) {
        bool        made;
        const auto & info = layer->layer->info;
        if (layer->layer->listed()) {
            continue;
        }
        if (!sketches.reserve(layer->index, info.head_dim, info.n_head_kv, made)) {
            return false;
        }
        if (made) {
            ctx.pages.stale.mark_all();
        }
    }
    return true;
}

static Failure no_sketches() { return { EDGEKV_NO_MEMORY, "there is no memory for the sketches of this context" }; }

Failure HostPlane::do_select(const edgekv_selection & selection) {
    return !selecting(ctx.wanted_mode.load(std::memory_order_relaxed), selection) || reserve_sketches() ? Failure{} : no_sketches();
}

Failure HostPlane::do_enter(edgekv_mode mode) {
    ahead.enter(mode != EDGEKV_MODE_OFF);
    if (mode == EDGEKV_MODE_EVICT) {
        for (const Layer * layer : ctx.hooked) {
            if (layer->listed()) {
                return { EDGEKV_UNSUPPORTED, "mode evict does not serve layers that attend the cells of an index; use the modes exact or sparse" };
            }
            if (layer->v_in_k()) {
                return { EDGEKV_UNSUPPORTED, "mode evict does not serve compressed KV (MLA); use the modes exact or sparse" };
            }
        }
        llama_edgekv_allow_gaps(ctx.lctx, ctx.params.selection.positions);
        give_back_from_now();
    }
    for (int s = 0; gives && mode != EDGEKV_MODE_EVICT && s < ctx.shape.n_stream; ++s) {
        empty_partial(s, 0, ctx.shape.n_cells);
    }
    return !selecting(mode, ctx.params.selection) || reserve_sketches() ? Failure{} : no_sketches();
}

Failure HostPlane::do_set_hot_rows(size_t n_bytes) {
    if (!disk.on_disk()) {
        return Plane::do_set_hot_rows(n_bytes);
    }
    if (!disk.reserve(n_bytes)) {
        return { EDGEKV_NO_MEMORY, "there is no memory for " + std::to_string(n_bytes) + " bytes of rows, or no room on the disk for a file of them" };
    }
    llama_edgekv_invalidate_graph(ctx.lctx);
    return {};
}

// ---- pages -------------------------------------------------------------------------------------------------------------------

Failure HostPlane::do_drop_pages(const edgekv_move * moves, int n) {
    all_come_back();
    for (int i = 0; i < n; ++i) {
        drops.drop(moves[i]);
    }
    for (int i = 0; i < n; ++i) {
        if (drops.all(moves[i].layer, moves[i].page, ctx.hooked[moves[i].layer]->info.n_head_kv)) {
            give_back(moves[i].layer, moves[i].page);
        }
    }
    return {};
}

const char * HostPlane::failure() const {
    return disk.failure() ? "the disk of the KV home failed while rows were read or written" : nullptr;
}

// ---- around a ubatch ---------------------------------------------------------------------------------------------------------

void HostPlane::do_begin(const UbatchBegin & ubatch) {
    n_ubatch     = ubatch.number;
    builds   = false;
    sketched.store(false, std::memory_order_relaxed);
    attended.store(Attended::none, std::memory_order_relaxed);
    n_last_observed.store(0, std::memory_order_relaxed);
    follow_cells(ubatch.clear_observation);
    ctx.pages.table.touched_taken();
    follow_copies();
    follow_gone();
    for (int s = 0; drops.any() && s < ctx.shape.n_stream; ++s) {
        if (copied[s]) {
            continue;
        }
        for (const ChangedPage & changed : ctx.pages.cells.changed_now(s)) {
            drops.undrop(changed.page);
        }
    }

    // the graph depends on dropped pages, the workspaces on the number of threads
    const int threads = std::max(llama_n_threads(ctx.lctx), llama_n_threads_batch(ctx.lctx));
    if (drops.any() != evicts || threads > n_threads) {
        llama_edgekv_invalidate_graph(ctx.lctx);
    }
    evicts    = drops.any();
    n_threads = std::max(n_threads, threads);
}

llama_edgekv_cells HostPlane::cells_of(int stream) const {
    llama_edgekv_cells cells = {};
    llama_edgekv_get_cells(ctx.lctx, static_cast<uint32_t>(stream), &cells);
    return cells;
}

// Pages behind a stream's last token are not observed, and take no memory. Sketches of groups that lost their tokens give it back.
void HostPlane::follow_cells(bool clear_observation) {
    constexpr int kGroups = 16;  // not for a few tokens that come and go
    const PageShape & shape = ctx.shape;
    for (int s = 0; s < shape.n_stream; ++s) {
        const int end = static_cast<int>(cells_of(s).used_end);

        Reached & before = reached[s];
        for (size_t i = 0; clear_observation && i < 2 * static_cast<size_t>(shape.n_layers) * shape.n_heads; ++i) {
            observation.zero((i * shape.n_pages + static_cast<size_t>(s) * shape.pages_per_stream) * sizeof(float), before.pages * sizeof(float));
        }
        before.pages = std::max(clear_observation ? 0 : before.pages, (end + shape.page_tokens - 1) / shape.page_tokens);

        const int n_groups = (end + kGroupCells - 1) / kGroupCells;
        if (n_groups + kGroups <= before.groups) {
            sketches.give_back(s, n_groups, before.groups);
            before.groups = n_groups;
        }
        before.groups = std::max(before.groups, n_groups);
    }
}

UbatchDone HostPlane::do_end(bool) {
    return { attended.load(std::memory_order_relaxed), sketched.load(std::memory_order_relaxed),
             n_last_observed.load(std::memory_order_relaxed) };
}

// ---- shared by its nodes -----------------------------------------------------------------------------------------------------

void HostPlane::build_anew() {
    if (!builds) {
        graph  = HostGraph(layers.size(), wholes.size());
        builds = true;
    }
}

LayerNodes & HostPlane::build(const HostLayer & layer) {
    build_anew();
    return graph.layers[layer.index];
}

WholeNodes & HostPlane::build(const WholeLayer & layer) {
    build_anew();
    return graph.wholes[layer.index];
}

bool HostPlane::selects(const HostLayer & layer, int n_cells_view) const {
    return layer.nodes().k_idxs && ((ctx.params.mode == EDGEKV_MODE_EVICT && evicts) || ctx.selects(n_cells_view));
}

bool HostPlane::observes_prompts() const {
    return ctx.params.observe && ctx.params.observe_prompts && (ctx.params.mode == EDGEKV_MODE_SPARSE || ctx.params.mode == EDGEKV_MODE_EVICT);
}

bool HostPlane::reserve_workspaces(HostLayer & layer, AttendProblem problem) {
    if (ctx.params.observe) {
        problem.mass_max = problem.mass_sum = reinterpret_cast<float *>(observation.data());
    }
    workspaces.resize(std::max(workspaces.size(), static_cast<size_t>(layer.nodes().reading.n_workspaces())));

    const auto reserve = [&](const TokenRun & run, size_t stride) {
        problem.n_tokens    = run.n;
        problem.rows.stride = stride;

        return workspaces[run.workspace].reserve(attend_workspace_bytes(problem, n_threads));
    };

    const Reading & reading = layer.nodes().reading;
    return std::all_of(reading.selected.begin(), reading.selected.end(),
                       [&](const TokenRun & run) { return reserve(run, lists_of(layer, run).stride); }) &&
           std::all_of(reading.whole.begin(), reading.whole.end(), [&](const TokenRun & run) { return reserve(run, layer.nodes().n_listed); });
}

bool HostPlane::reserve_prompt(size_t n_bytes) {
    prompt_workspaces.resize(n_threads);
    for (auto & workspace : prompt_workspaces) {
        if (!workspace.reserve(n_bytes)) {
            return false;
        }
    }
    return true;
}

RowLists & HostPlane::lists_of(HostLayer & layer, const TokenRun & run) {
    return ctx.params.selection.keep_rows ? layer.lists[run.workspace] : lists[run.workspace];
}

float * HostPlane::mass(int which, int layer, int stream) const {
    if (!ctx.params.observe) {
        return nullptr;
    }
    return reinterpret_cast<float *>(observation.data()) + which * ctx.shape.n_entries() + ctx.shape.entry_of_stream(layer, stream, 0);
}

// ---- questions ---------------------------------------------------------------------------------------------------------------

PageArrays HostPlane::arrays() const {
    const float * mass = reinterpret_cast<const float *>(observation.data());
    return { drops.data(), mass, mass + ctx.shape.n_entries() };
}

void HostPlane::do_add_selected(edgekv_selected * out, int sequence) const {
    for (const auto & layer : layers) {
        const size_t n_heads = layer->layer->info.n_head_kv;
        const size_t first   = sequence < 0 ? 0 : sequence * n_heads;
        const auto   sum_of  = [&](size_t i) -> edgekv_selected & { return out[static_cast<size_t>(layer->index) * ctx.shape.n_heads + i % n_heads]; };
        for (size_t i = first; i < (sequence < 0 ? layer->selected.size() : first + n_heads); ++i) {
            const edgekv_selected & one = layer->selected[i];
            edgekv_selected &       sum = sum_of(i);
            sum.n_tokens  += one.n_tokens;
            sum.n_visible += one.n_visible;
            sum.n_certain += one.n_certain;
            sum.covered   += one.covered;
            sum.n_covered += one.n_covered;
        }
        const bool all = sequence < 0 || layer->hits.size() == layer->selected.size();
        for (size_t i = first; all && i < (sequence < 0 ? layer->hits.size() : first + n_heads); ++i) {
            const AttendHits & hits = layer->hits[i];
            edgekv_selected &  sum  = sum_of(i);
            sum.n_read    += hits.n_read;
            sum.n_hits    += hits.n_hits;
            sum.mass      += hits.mass;
            sum.mass_hits += hits.mass_hits;
            sum.error     += hits.error;
            sum.n_errors  += hits.n_errors;
        }
    }
}

RowsRead HostPlane::do_last_rows(const Layer & layer, int head, int token) const {
    const HostLayer & served = of(layer);
    const TokenRun *  run    = served.nodes().reading.selected_of(0);
    if (!run || token < run->first || token >= run->first + run->n) {
        return {};
    }
    const RowLists & from = served.lists[run->workspace];
    const int        list = (token - run->first) * layer.info.n_head_kv + head;
    if (token - run->first >= from.n_tokens) {
        return {};  // no rows were kept for this token
    }
    return { from.cells_of(list), from.weighted ? from.weights_of(list) : nullptr, from.n_rows_of(list) };
}

PromptBlocks HostPlane::prompt_blocks() const {
    return { blocks.seen.load(std::memory_order_relaxed), blocks.attended.load(std::memory_order_relaxed) };
}

void HostPlane::add_memory(edgekv_memory & out) const {
    for (const auto * buffers : { &workspaces, &select_workspaces, &sights, &prompt_workspaces }) {
        for (const Buffer & buffer : *buffers) {
            out.workspace_bytes += buffer.size();
        }
    }
    for (const RowLists & of_stream : lists) {
        out.workspace_bytes += of_stream.bytes();
    }
    for (const auto & layer : layers) {
        for (const RowLists & of_stream : layer->lists) {
            out.workspace_bytes += of_stream.bytes();
        }
    }
    out.observation_bytes += observation.size();
    out.sketch_bytes      += sketches.bytes();
    out.arena_bytes       += disk.bytes();
    out.table_bytes       += drops.bytes() + gone.bytes();
}

Sketch HostPlane::do_sketch(const Layer & layer, int stream, std::vector<char> &) const { return sketches.of(layer.info.index, stream); }

}  // namespace edgekv
