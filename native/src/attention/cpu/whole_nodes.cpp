// The node of a layer attended whole in every mode: its window slides, or ALiBi biases its logits. Stock nodes store its rows.
//
//   1. The decode kernel attends a short ubatch, stream by stream, each in its own workspace.
//   2. The threads of a longer one claim work items, as in prompt_nodes.cpp.
//
// Kernels sum in blocks of cells. Here blocks start at the first visible cell, so a window that was restored to other cells gives the same
// sums.
//
// Such a layer has no pages: nothing is observed, selected or dropped. The node reads Q, the layer's K and V and the mask. It writes its own value
// and the workspaces, which the attend nodes before and after it use too; the decoding thread reserves them while it builds the graph.
#include "attention/cpu/nodes.h"

#include "state/state.h"

#include <algorithm>
#include <vector>

namespace edgekv {
namespace {

AttendProblem whole_problem(const WholeLayer & layer, const ggml_tensor * dst, int64_t s) {
    AttendProblem p = make_problem(dst, s, layer.plane->ctx.shape.page_tokens);
    p.scale    = layer.nodes().scale;
    p.softcap  = layer.nodes().softcap;
    p.max_bias = layer.nodes().max_bias;
    if (dst->data) {
        const ggml_tensor * mask  = dst->src[ATTEND_MASK];
        const int           first = first_seen(mask, s);
        p.k       += first * p.k_stride_cell;
        p.v       += first * p.v_stride_cell;
        p.mask    += first * mask->nb[0];
        p.n_cells -= first;
    }
    return p;
}

void run_whole(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const WholeLayer & layer = *static_cast<const WholeLayer *>(userdata);
    for (int64_t s = 0; s < dst->src[ATTEND_K]->ne[3]; ++s) {
        attend_run(whole_problem(layer, dst, s), layer.plane->workspaces[s].data(), ith, nth, selected_isa());
    }
}

void run_whole_prompt(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const WholeLayer & layer    = *static_cast<const WholeLayer *>(userdata);
    HostPlane &        plane    = *layer.plane;
    const int          n_stream = static_cast<int>(dst->src[ATTEND_K]->ne[3]);
    std::vector<PromptProblem> problems;
    for (int64_t s = 0; s < n_stream; ++s) {
        problems.push_back(with_seen(whole_problem(layer, dst, s), dst, s));
    }

    PromptPlan plan = prompt_plan(problems[0].attend, plane.n_threads);
    for (int i = plane.prompt_items.claim(); i < plan.n_items * n_stream; i = plane.prompt_items.claim()) {
        const PromptProblem & problem = problems[i % n_stream];
        plan.n_cell_blocks = prompt_cell_blocks(problem.attend.n_cells);  // the only difference between streams
        prompt_attend(problem, plan, i / n_stream, plane.prompt_workspaces[ith].data(), selected_isa());
    }
    plane.prompt_items.leave(nth);
}

bool reserve_for(HostPlane & plane, const AttendProblem & problem, int64_t n_stream, bool of_prompt) {
    if (of_prompt) {
        return plane.reserve_prompt(align64(prompt_plan(problem, plane.n_threads).scratch_bytes));
    }
    plane.workspaces.resize(std::max(plane.workspaces.size(), static_cast<size_t>(n_stream)));
    return std::all_of(plane.workspaces.begin(), plane.workspaces.begin() + n_stream,
                       [&](Buffer & workspace) { return workspace.reserve(attend_workspace_bytes(problem, plane.n_threads)); });
}

}  // namespace

ggml_tensor * HostPlane::do_build_whole(const Layer & layer, const llama_edgekv_attend & args) {
    const bool of_prompt = is_long(args.k, args.q->ne[2]);
    if (!attendable(args) || args.top_k || (of_prompt && !prompt_supports(layer.info.head_dim, cell_type(args.k), cell_type(args.v)))) {
        return nullptr;
    }
    WholeLayer & own = *std::find_if(wholes.begin(), wholes.end(), [&](const WholeLayer & one) { return one.il == layer.il; });
    build(own) = { args.scale, args.softcap, args.max_bias };

    ggml_tensor * sources[N_ATTEND_SOURCES] = { args.q, args.k, args.v, args.mask, args.sinks };
    if (of_prompt) {
        sources[ATTEND_SEEN] = build_seen(*this, args, SeenFrom::first_seen);
    }
    ggml_tensor * node = ggml_custom_4d(args.ctx, GGML_TYPE_F32, args.v->ne[0] * args.q->ne[1], args.q->ne[2], 1, 1, sources, N_ATTEND_SOURCES,
                                        of_prompt ? run_whole_prompt : run_whole, GGML_N_TASKS_MAX, &own);
    ggml_format_name(node, "edgekv_whole-%d", args.il);
    if (!reserve_for(*this, whole_problem(own, node, 0), args.k->ne[3], of_prompt)) {
        return nullptr;  // stock nodes need no memory of ours
    }
    ggml_build_forward_expand(args.gf, node);
    return node;
}

}  // namespace edgekv
