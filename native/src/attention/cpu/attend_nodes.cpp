// The nodes that attend a short ubatch, and observe it.
//
//   1. The attend node waits for the layer's rows.
//   2. It attends the runs of tokens that select, by the select node's lists. Sums and estimated errors go to HostLayer::hits.
//   3. It attends the other runs, whose tokens read every visible cell, from home. If an index lists cells for each token, tokens read the
//      visible cells of the list node's lists, in every mode.
//   4. For these runs the observe node turns the attend node's partial results in the workspaces into attention mass by page. It is a separate
//      node, because mass is known only after all threads have attended.
//
// Each run has its own workspace, which all threads share: a node has no barrier between runs, so a thread may attend the next run while
// others still attend this one. The decoding thread reserves the workspaces while it builds the graph. The next layer's nodes reuse them.
#include "attention/cpu/nodes.h"

#include <algorithm>

namespace edgekv {
namespace {

const char * at(const ggml_tensor * t, size_t offset) { return static_cast<const char *>(t->data) + offset; }

}  // namespace

AttendProblem make_problem(const ggml_tensor * dst, int64_t s, int page_tokens) {
    const ggml_tensor * q     = dst->src[ATTEND_Q];
    const ggml_tensor * k     = dst->src[ATTEND_K];
    const ggml_tensor * v     = dst->src[ATTEND_V];
    const ggml_tensor * mask  = dst->src[ATTEND_MASK];
    const ggml_tensor * sinks = dst->src[ATTEND_SINKS];

    const int64_t n_stream = k->ne[3];
    const int64_t n_tokens = q->ne[2] / n_stream;

    AttendProblem p = {};
    p.head_dim    = static_cast<int>(k->ne[0]);
    p.v_in_k      = v_in_k(k, v) ? static_cast<int>(v->ne[0]) : 0;
    p.n_head      = static_cast<int>(q->ne[1]);
    p.n_head_kv   = static_cast<int>(k->ne[1]);
    p.n_tokens    = static_cast<int>(n_tokens);
    p.n_cells     = static_cast<int>(k->ne[2]);
    p.page_tokens = page_tokens;

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

    p.out_stride_head  = attend_v_dim(p) * sizeof(float);
    p.out_stride_token = p.n_head * p.out_stride_head;

    if (dst->data) {
        p.q    = at(q, s * n_tokens * q->nb[2]);
        p.k    = at(k, s * k->nb[3]);
        p.v    = at(v, s * v->nb[3]);
        p.mask = at(mask, s * mask->nb[3]);
        p.out  = static_cast<char *>(dst->data) + s * n_tokens * p.out_stride_token;

        p.sinks = sinks ? static_cast<const float *>(sinks->data) : nullptr;
    }
    return p;
}

AttendProblem make_problem(const HostLayer & layer, const ggml_tensor * dst, int64_t s) {
    AttendProblem p = make_problem(dst, s, layer.plane->ctx.shape.page_tokens);
    p.scale   = layer.nodes().scale;
    p.softcap = layer.nodes().softcap;
    if (dst->data) {
        // the view may start at a later stream than the cache
        const int stream = static_cast<int>(s) + first_stream(dst->src[ATTEND_K]);
        p.mass_max    = layer.plane->mass_max(layer.index, stream);
        p.mass_sum    = layer.plane->mass_sum(layer.index, stream);
        p.mass_stride = layer.plane->ctx.shape.n_pages;
    }
    return p;
}

namespace {

AttendProblem make_problem(const HostLayer & layer, const ggml_tensor * dst, const TokenRun & run) {
    AttendProblem p = make_problem(layer, dst, run.stream);
    p.q       += run.first * p.q_stride_token;
    p.mask    += run.first * p.mask_stride_token;
    p.out     += run.first * p.out_stride_token;
    p.n_tokens = run.n;
    return p;
}

// Adds the select node's lists, and the copies of their rows.
void add_rows(HostLayer & layer, const ggml_tensor * dst, const TokenRun & run, AttendProblem & p) {
    HostPlane &      plane  = *layer.plane;
    const State &    ctx    = plane.ctx;
    const int        stream = run.stream + first_stream(dst->src[ATTEND_K]);
    const RowLists & lists  = plane.lists_of(layer, run);

    p.rows.cells   = lists.cells_of(0);
    p.rows.weights = lists.weighted ? lists.weights_of(0) : nullptr;
    p.rows.n_rows  = &lists.n_rows_of(0);
    p.rows.stride  = lists.stride;
    p.error_every  = ctx.params.selection.error_every;
    p.error_turn   = static_cast<int>((plane.n_ubatch + layer.index) % std::max(1, p.error_every));

    if (plane.disk.keeps(layer.index)) {
        p.copies = plane.disk.copies(layer.index, lists.slots_of(0));
    }

    p.hits = layer.hits.data() + static_cast<size_t>(stream) * p.n_head_kv;
}

// A run that selects clears the outputs of the tokens that it leaves out. The runs of those tokens follow it, and write an output only after every
// thread has finished the earlier run.
void run_attend(ggml_tensor * dst, int ith, int nth, void * userdata) {
    HostLayer & layer = *static_cast<HostLayer *>(userdata);
    HostPlane & plane = *layer.plane;

    plane.ctx.arrivals.wait(layer.layer->il);
    for (const TokenRun & run : layer.nodes().reading.selected) {
        AttendProblem problem = make_problem(layer, dst, run);
        add_rows(layer, dst, run, problem);
        const int stream = run.stream + first_stream(dst->src[ATTEND_K]);
        if (!problem.copies.data) {
            plane.ahead.rows(layer.index, stream, problem.rows, problem.n_tokens, problem.n_head_kv, ith, nth);
        }
        attend_run(problem, plane.workspaces[run.workspace].data(), ith, nth, selected_isa());
    }
    for (const TokenRun & run : layer.nodes().reading.whole) {
        AttendProblem problem = make_problem(layer, dst, run);
        const int     stream  = run.stream + first_stream(dst->src[ATTEND_K]);
        plane.ahead.whole(layer.index, stream, problem.n_cells, ith, nth);
        if (const ggml_tensor * list = dst->src[ATTEND_LISTED]) {
            problem.rows = listed_rows(list, run.stream);
        }
        attend_run(problem, plane.workspaces[run.workspace].data(), ith, nth, selected_isa());
        plane.ahead.whole(plane.ahead.next(layer.index), stream, problem.n_cells, ith, nth);
    }

    if (ith == 0) {
        plane.attended.store(Attended::decode, std::memory_order_relaxed);
    }
}

// Behind the select node: a home on disk brings the rows that memory lacks.
void run_bring(ggml_tensor * dst, int ith, int nth, void * userdata) {
    HostLayer & layer = *static_cast<HostLayer *>(userdata);
    HostPlane & plane = *layer.plane;

    for (const TokenRun & run : layer.nodes().reading.selected) {
        const int    stream = run.stream + first_stream(dst->src[1]);
        AttendHits * hits   = layer.hits.data() + static_cast<size_t>(stream) * layer.layer->info.n_head_kv;
        plane.disk.bring(layer.index, stream, plane.lists_of(layer, run), hits, plane.n_ubatch, ith, nth);
    }
}

ggml_tensor * build_bring(HostLayer & layer, const llama_edgekv_attend & args, ggml_tensor * select) {
    ggml_tensor * sources[] = { select, args.k };
    ggml_tensor * node = ggml_custom_4d(args.ctx, GGML_TYPE_F32, 1, 1, 1, 1, sources, 2, run_bring, GGML_N_TASKS_MAX, &layer);
    ggml_format_name(node, "edgekv_bring-%d", args.il);
    return node;
}

// The node runs after its attend node, before another node uses the workspace.
void run_observe(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const HostLayer & layer = *static_cast<const HostLayer *>(userdata);

    for (const TokenRun & run : layer.nodes().reading.whole) {
        attend_observe(make_problem(layer, dst->src[0], run), layer.plane->workspaces[run.workspace].data(), ith, nth, selected_isa());
    }
}

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

    if (of_prompt && (served.v_in_k() || args.top_k)) {
        return nullptr;  // stock nodes read prompts of compressed rows, and of what an index lists
    }

    LayerNodes & nodes = build(layer);
    nodes.scale   = args.scale;
    nodes.softcap = args.softcap;
    if (of_prompt) {
        return build_attend_prompt(layer, served, args);
    }

    ggml_tensor * sources[N_ATTEND_SOURCES] = { args.q, args.k, args.v, args.mask, args.sinks };
    const int n_stream = static_cast<int>(args.k->ne[3]);
    const bool samples = !args.top_k && selects(layer, static_cast<int>(args.k->ne[2]));
    nodes.reading  = find_reading(ctx, n_stream, static_cast<int>(args.q->ne[2]) / n_stream, samples);
    nodes.n_listed = args.top_k ? static_cast<int>(args.top_k->ne[0]) : 0;
    if (!nodes.reading.selected.empty()) {
        sources[ATTEND_SELECTED] = build_select(layer, args);
        if (sources[ATTEND_SELECTED] && disk.keeps(layer.index)) {
            sources[ATTEND_SELECTED] = build_bring(layer, args, sources[ATTEND_SELECTED]);
        }
    }
    if (args.top_k) {
        sources[ATTEND_LISTED] = build_list(args);
    }

    ggml_tensor * node = ggml_custom_4d(args.ctx, GGML_TYPE_F32, args.v->ne[0] * args.q->ne[1], args.q->ne[2], 1, 1,
                                        sources, N_ATTEND_SOURCES, run_attend, GGML_N_TASKS_MAX, &layer);
    ggml_format_name(node, "edgekv_attend-%d", args.il);

    const bool reserved = (nodes.reading.selected.empty() || sources[ATTEND_SELECTED]) && reserve_workspaces(layer, make_problem(layer, node, 0));
    served.had_memory(reserved, false);
    if (!reserved) {
        ctx.cannot_attend = ctx.cannot_attend || gone.any(layer.index);
        return nullptr;  // stock nodes need no memory of ours
    }

    ggml_build_forward_expand(args.gf, node);

    if (ctx.params.observe && !nodes.reading.whole.empty() && !args.top_k) {
        ggml_build_forward_expand(args.gf, build_observe(layer, args, node));
    }
    return node;
}

}  // namespace edgekv
