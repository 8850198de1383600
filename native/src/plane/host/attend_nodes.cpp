// The nodes that attend a decode, and turn what they left into mass.
#include "plane/host/nodes.h"

#include <algorithm>

namespace edgekv {

namespace {

const char * at(const ggml_tensor * t, size_t offset) {
    return static_cast<const char *>(t->data) + offset;
}

}  // namespace

AttendProblem make_problem(const HostLayer & layer, const ggml_tensor * dst, int64_t s) {
    const ggml_tensor * q     = dst->src[ATTEND_Q];
    const ggml_tensor * k     = dst->src[ATTEND_K];
    const ggml_tensor * v     = dst->src[ATTEND_V];
    const ggml_tensor * mask  = dst->src[ATTEND_MASK];
    const ggml_tensor * sinks = dst->src[ATTEND_SINKS];

    const int64_t n_stream = k->ne[3];
    const int64_t n_tokens = q->ne[2]/n_stream;

    AttendProblem p = {};
    p.head_dim    = (int) k->ne[0];
    p.n_head      = (int) q->ne[1];
    p.n_head_kv   = (int) k->ne[1];
    p.n_tokens    = (int) n_tokens;
    p.n_cells     = (int) k->ne[2];
    p.page_tokens = layer.plane->ctx.shape.page_tokens;

    p.q_stride_token = q->nb[2];
    p.q_stride_head  = q->nb[1];

    p.k_type        = cell_type(k);
    p.k_stride_cell = k->nb[2];
    p.k_stride_head = k->nb[1];
    p.v_type        = cell_type(v);
    p.v_stride_cell = v->nb[2];
    p.v_stride_head = v->nb[1];

    p.mask_type         = mask_type(mask);
    p.mask_stride_token = mask->nb[1];

    p.scale   = layer.scale;
    p.softcap = layer.softcap;

    p.out_stride_head  = p.head_dim*sizeof(float);
    p.out_stride_token = p.n_head*p.out_stride_head;

    if (dst->data) {
        p.q    = at(q, s*n_tokens*q->nb[2]);
        p.k    = at(k, s*k->nb[3]);
        p.v    = at(v, s*v->nb[3]);
        p.mask = at(mask, s*mask->nb[3]);
        p.out  = static_cast<char *>(dst->data) + s*n_tokens*p.out_stride_token;

        p.sinks = sinks ? static_cast<const float *>(sinks->data) : nullptr;

        // the view may begin at a later stream than the cache
        const int stream = (int) s + first_stream(k);
        p.mass_max    = layer.plane->mass_max(layer.row, stream);
        p.mass_sum    = layer.plane->mass_sum(layer.row, stream);
        p.mass_stride = layer.plane->ctx.shape.n_pages;
    }

    return p;
}

namespace {

AttendProblem make_problem(const HostLayer & layer, const ggml_tensor * dst, const TokenRun & run) {
    AttendProblem p = make_problem(layer, dst, run.stream);
    p.q       += run.first*p.q_stride_token;
    p.mask    += run.first*p.mask_stride_token;
    p.out     += run.first*p.out_stride_token;
    p.n_tokens = run.n;

    return p;
}

// the rows that the node before this one selected, and where they lie
void add_rows(HostLayer & layer, const ggml_tensor * dst, const TokenRun & run, AttendProblem & p) {
    HostPlane &            plane  = *layer.plane;
    const State & ctx    = plane.ctx;
    const int              stream = run.stream + first_stream(dst->src[ATTEND_K]);
    const RowLists &       lists  = plane.lists_of(layer, run);

    p.rows.cells   = reinterpret_cast<const int32_t *>(lists.cells.data());
    p.rows.weights = ctx.sketches() ? reinterpret_cast<const float *>(lists.weights.data()) : nullptr;
    p.rows.n_rows  = reinterpret_cast<const int32_t *>(lists.n_rows.data());
    p.rows.stride  = lists.stride;
    p.error_every  = ctx.params.selection.error_every;
    p.error_turn   = (int) ((plane.n_ubatch + layer.row)%std::max(1, p.error_every));

    p.arena.data         = plane.arena.data();
    p.arena.slot_bytes   = ctx.shape.slot_bytes;
    p.arena.v_offset     = p.page_tokens*layer.layer->k_row_bytes();
    p.arena.slots        = ctx.pages.table.slots(layer.row, stream, 0);
    p.arena.slots_stride = ctx.shape.n_pages;

    p.hits = layer.hits.data() + (size_t) stream*p.n_head_kv;
}

// No barrier between runs, so each has a workspace of its own. Those that select clear the outputs of the tokens that they leave out; the
// runs of these come behind, and write where every thread has left the ones before.
void run_attend(ggml_tensor * dst, int ith, int nth, void * userdata) {
    HostLayer & layer = *static_cast<HostLayer *>(userdata);
    HostPlane & plane = *layer.plane;

    plane.ctx.arrivals.wait(layer.layer->il);
    for (const TokenRun & run : layer.reading.selected) {
        AttendProblem problem = make_problem(layer, dst, run);
        add_rows(layer, dst, run, problem);
        attend_run(problem, plane.workspaces[run.workspace].data(), ith, nth, selected_isa());
    }
    for (const TokenRun & run : layer.reading.whole) {
        attend_run(make_problem(layer, dst, run), plane.workspaces[run.workspace].data(), ith, nth, selected_isa());
    }

    if (ith == 0) {
        plane.attended.store(Attended::decode, std::memory_order_relaxed);
    }
}

// runs behind its attend node, before anything else uses the workspace
void run_observe(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const HostLayer & layer = *static_cast<const HostLayer *>(userdata);

    for (const TokenRun & run : layer.reading.whole) {
        attend_observe(make_problem(layer, dst->src[0], run), layer.plane->workspaces[run.workspace].data(), ith, nth, selected_isa());
    }
}

// the node behind an attend node: it turns what that one left in the workspace into attention mass
ggml_tensor * build_observe(HostLayer & layer, const llama_edgekv_attend & args, ggml_tensor * attend) {
    ggml_tensor * node = ggml_custom_4d(args.ctx, GGML_TYPE_F32, 1, 1, 1, 1, &attend, 1, run_observe, GGML_N_TASKS_MAX, &layer);
    ggml_format_name(node, "edgekv_observe-%d", args.il);

    return node;
}

}  // namespace

ggml_tensor * HostPlane::do_build_attend(Layer & served, const llama_edgekv_attend & args) {
    HostLayer & layer     = of(served);
    const bool  of_prompt = is_long(args.k, args.q->ne[2]);
    if (!attendable(args)) {
        served.info.state = of_prompt ? served.info.state : EDGEKV_LAYER_GRAPH;
        return nullptr;
    }

    layer.scale   = args.scale;
    layer.softcap = args.softcap;
    layer.reading = {};
    if (of_prompt) {
        return build_attend_prompt(layer, served, args);
    }

    ggml_tensor * sources[N_ATTEND_SOURCES] = { args.q, args.k, args.v, args.mask, args.sinks };
    const int n_stream = (int) args.k->ne[3];
    layer.reading = find_reading(ctx, n_stream, (int) args.q->ne[2]/n_stream, selects(layer, (int) args.k->ne[2]));
    if (!layer.reading.selected.empty()) {
        sources[ATTEND_SELECTED] = build_select(layer, args);
    }
    layer.k_idxs = nullptr;  // belongs to this graph

    ggml_tensor * node = ggml_custom_4d(args.ctx, GGML_TYPE_F32, args.q->ne[0]*args.q->ne[1], args.q->ne[2], 1, 1,
                                        sources, N_ATTEND_SOURCES, run_attend, GGML_N_TASKS_MAX, &layer);
    ggml_format_name(node, "edgekv_attend-%d", args.il);

    const bool reserved = (layer.reading.selected.empty() || sources[ATTEND_SELECTED]) && reserve_workspaces(layer, make_problem(layer, node, 0));
    served.had_memory(reserved, false);
    if (!reserved) {
        return nullptr;  // the stock nodes need none
    }

    ggml_build_forward_expand(args.gf, node);

    if (ctx.params.observe && !layer.reading.whole.empty()) {
        ggml_build_forward_expand(args.gf, build_observe(layer, args, node));
    }

    return node;
}

}  // namespace edgekv
