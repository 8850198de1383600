// The nodes of ubatches too long for the decode kernel.
//
//   1. The seen node classifies the blocks of a mask: a block of tokens sees all, some or none of a block of cells. Layers that share the
//      mask share the node.
//   2. The attend node waits for the layer's rows. Its threads claim work items: a KV head, a block of queries and a stream.
//   3. In a sparse prompt, the thread chooses the blocks of cells that its item attends (prompt_choice_node.cpp).
//   4. The thread attends the item, and adds the mass of the last tokens if prompts are observed.
//
// The attend node reads Q, home's K and V, the mask, its classes and, in mode evict, the heads' dropped pages. It writes its own value and the
// plane's attention mass; thread i writes prompt_workspaces[i]. The decoding thread reserves this memory while it builds the graph.
#include "attention/cpu/nodes.h"
#include "kernels/prefill/prompt.h"

#include <algorithm>

namespace edgekv {
namespace {

// Classifies the blocks of a mask: [stream][token block][cell block]
template <SeenFrom from>
void run_seen(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * mask     = dst->src[0];
    const int           n_blocks = static_cast<int>(dst->ne[1]);

    int looked = -1, first = 0;  // a stream, and the first cell of its blocks
    for (int i = ith; i < n_blocks * static_cast<int>(dst->ne[2]); i += nth) {
        const int s     = i / n_blocks;
        const int block = i % n_blocks;
        if (from == SeenFrom::first_seen && s != looked) {
            first  = first_seen(mask, s);
            looked = s;
        }
        char * const seen  = static_cast<char *>(dst->data) + s * dst->nb[2] + block * dst->nb[1];
        prompt_classify(mask_type(mask), static_cast<const char *>(mask->data) + s * mask->nb[3] + first * mask->nb[0], mask->nb[1],
                        static_cast<int>(mask->ne[1]), static_cast<int>(mask->ne[0]) - first, block, reinterpret_cast<Seen *>(seen));
    }
}

}  // namespace

int first_seen(const ggml_tensor * mask, int64_t stream) {
    const int n     = static_cast<int>(mask->ne[0]);
    int       first = n;
    for (int64_t token = 0; token < mask->ne[1]; ++token) {
        const char * shown = static_cast<const char *>(mask->data) + stream * mask->nb[3] + token * mask->nb[1];
        for (int cell = 0; cell < first; cell += 64) {
            if (const uint64_t cells = visible_cells(mask_type(mask), shown, cell, std::min(cell + 64, first))) {
                first = cell + __builtin_ctzll(cells);
            }
        }
    }
    return first < n ? first : 0;
}

ggml_tensor * build_seen(HostPlane & plane, const llama_edgekv_attend & args, SeenFrom from) {
    for (const auto & [mask, node] : plane.graph.seen) {
        if (mask == args.mask) {
            return node;
        }
    }

    ggml_tensor * mask = args.mask;
    ggml_tensor * node = ggml_custom_4d(args.ctx, GGML_TYPE_I8, prompt_cell_blocks(static_cast<int>(mask->ne[0])),
                                        prompt_token_blocks(static_cast<int>(mask->ne[1])), mask->ne[3], 1, &mask, 1,
                                        from == SeenFrom::first_seen ? run_seen<SeenFrom::first_seen> : run_seen<SeenFrom::cell_0>,
                                        GGML_N_TASKS_MAX, nullptr);
    ggml_format_name(node, "edgekv_seen-%d", args.il);
    plane.graph.seen.emplace_back(mask, node);
    return node;
}

PromptProblem with_seen(const AttendProblem & problem, const ggml_tensor * dst, int64_t s) {
    const ggml_tensor * seen = dst->src[ATTEND_SEEN];
    PromptProblem p = {};
    p.attend      = problem;
    p.seen        = reinterpret_cast<const Seen *>(static_cast<const char *>(seen->data) + s * seen->nb[2]);
    p.seen_stride = seen->nb[1];
    return p;
}

namespace {

AttendProblem attend_problem(const HostLayer & layer, const ggml_tensor * dst, int64_t s) {
    AttendProblem p = make_problem(layer, dst, s);
    if (!layer.plane->observes_prompts()) {
        p.mass_max = p.mass_sum = nullptr;
    }
    return p;
}

PromptProblem prompt_problem(const HostLayer & layer, const ggml_tensor * dst, int64_t s) {
    const HostPlane & plane  = *layer.plane;
    const int         stream = static_cast<int>(s) + first_stream(dst->src[ATTEND_K]);

    PromptProblem p = with_seen(attend_problem(layer, dst, s), dst, s);
    if (plane.ctx.params.mode == EDGEKV_MODE_EVICT && plane.drops.any(layer.index)) {
        p.dropped        = plane.drops.of(layer.index, stream, 0);
        p.dropped_stride = plane.ctx.shape.n_pages;
    }
    return p;
}

// A free thread claims the next item; the longest items of all streams come first.
void run_attend_prompt(ggml_tensor * dst, int ith, int nth, void * userdata) {
    HostLayer &         layer    = *static_cast<HostLayer *>(userdata);
    HostPlane &         plane    = *layer.plane;
    const ggml_tensor * k        = dst->src[ATTEND_K];
    const int           n_stream = static_cast<int>(k->ne[3]);
    char * const        memory   = plane.prompt_workspaces[ith].data();

    plane.ctx.arrivals.wait(layer.layer->il);
    // the plan is for the number of threads with reserved memory; fewer may run
    const AttendProblem whole = attend_problem(layer, dst, 0);
    const PromptPlan    plan  = prompt_plan(whole, plane.n_threads);
    const int           n     = plan.n_items * n_stream;
    const auto read_ahead = [&](int of_layer) {
        for (int s = 0; s < n_stream; ++s) {
            plane.ahead.whole(of_layer, s + first_stream(k), whole.n_cells, ith, nth);
        }
    };
    read_ahead(layer.index);

    for (int i = plane.prompt_items.claim(); i < n; i = plane.prompt_items.claim()) {
        const int     s       = i % n_stream;
        PromptProblem problem = prompt_problem(layer, dst, s);
        if (dst->src[ATTEND_K_IDXS]) {  // a sparse prompt
            const int64_t * k_idxs = static_cast<const int64_t *>(dst->src[ATTEND_K_IDXS]->data) + s * whole.n_tokens;
            choose_prompt_blocks(layer, k_idxs, s + first_stream(k), plan, i / n_stream, problem, memory + align64(plan.scratch_bytes));
        }
        prompt_attend(problem, plan, i / n_stream, memory, selected_isa());
    }
    read_ahead(plane.ahead.next(layer.index));
    if (ith == 0) {
        plane.attended.store(Attended::prompt, std::memory_order_relaxed);
        if (whole.mass_max) {
            plane.n_last_observed.store(n_stream * std::min(whole.n_tokens, kPromptTokens), std::memory_order_relaxed);
        }
    }
    plane.prompt_items.leave(nth);
}

}  // namespace

ggml_tensor * build_attend_prompt(HostLayer & layer, Layer & served, const llama_edgekv_attend & args) {
    HostPlane & plane = *layer.plane;
    const ggml_tensor * k_idxs = sparse_prompt(plane, static_cast<int>(args.k->ne[2])) ? layer.nodes().k_idxs : nullptr;
    ggml_tensor * sources[N_ATTEND_SOURCES] = { args.q, args.k, args.v, args.mask, args.sinks, nullptr, build_seen(plane, args, SeenFrom::cell_0),
                                                const_cast<ggml_tensor *>(k_idxs) };
    ggml_tensor * node = ggml_custom_4d(args.ctx, GGML_TYPE_F32, args.q->ne[0] * args.q->ne[1], args.q->ne[2], 1, 1,
                                        sources, N_ATTEND_SOURCES, run_attend_prompt, GGML_N_TASKS_MAX, &layer);
    ggml_format_name(node, "edgekv_attend_prompt-%d", args.il);

    AttendProblem problem = make_problem(layer, node, 0);
    if (!prompt_supports(problem.head_dim, problem.k_type, problem.v_type)) {
        return nullptr;
    }
    if (plane.observes_prompts()) {
        problem.mass_max = problem.mass_sum = plane.mass_max(layer.index, 0);
    }
    const size_t choice = sources[ATTEND_K_IDXS] ? prompt_choice_bytes(problem) : 0;
    const bool reserved = plane.reserve_prompt(align64(prompt_plan(problem, plane.n_threads).scratch_bytes) + choice);
    served.had_memory(reserved, true);
    if (!reserved) {
        plane.ctx.cannot_attend = plane.ctx.cannot_attend || plane.gone.any(layer.index);
        return nullptr;  // stock nodes need no memory of ours
    }
    ggml_build_forward_expand(args.gf, node);
    return node;
}

}  // namespace edgekv
