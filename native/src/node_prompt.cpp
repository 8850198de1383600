// The nodes of prompt-sized ubatches. Where heads have dropped pages the stock nodes, which know one mask for all heads, would attend
// them: a node of ours attends the whole ubatch in their place. Elsewhere the stock nodes attend, and a glimpse of the last tokens
// lets the policies see what a prompt attends to; its result is not used.
#include "nodes_internal.h"

#include <algorithm>
#include <atomic>

namespace edgekv {

namespace {

// a thread's own memory: what attention needs, then its lists of rows, and what a token sees
struct PromptSpace {
    PromptSpace(const AttendProblem & problem) {
        const size_t n_lists = (size_t) kMaxQueryTokens*problem.n_head_kv;

        n_groups = (problem.n_cells + kGroupCells - 1)/kGroupCells;
        stride   = (size_t) n_groups*kGroupCells;
        AttendProblem chunk = problem;
        chunk.n_tokens = kMaxQueryTokens;
        const size_t whole = attend_workspace_bytes(chunk, 1);
        chunk.rows.stride = stride;
        cells_offset  = align64(std::max(whole, attend_workspace_bytes(chunk, 1)));
        counts_offset = cells_offset + align64(n_lists*stride*sizeof(int32_t));
        sight_offset  = counts_offset + align64(n_lists*sizeof(int32_t));
        bytes         = sight_offset + align64(n_groups*sizeof(Sight));
    }

    int n_groups;
    size_t stride, cells_offset, counts_offset, sight_offset, bytes;
};

// the rows that each token and head of a chunk attends: what it sees, less what the head dropped
AttendRows list_rows(const Layer & layer, const ggml_tensor * mask, const AttendProblem & chunk, int stream, const PromptSpace & space,
                     char * memory) {
    Sight * const   sight  = reinterpret_cast<Sight *>(memory + space.sight_offset);
    int32_t * const cells  = reinterpret_cast<int32_t *>(memory + space.cells_offset);
    int32_t * const n_rows = reinterpret_cast<int32_t *>(memory + space.counts_offset);

    for (int token = 0; token < chunk.n_tokens; ++token) {
        find_visible(mask, chunk.mask + token*chunk.mask_stride_token, chunk.n_cells, sight);
        for (int head = 0; head < chunk.n_head_kv; ++head) {
            const size_t list = (size_t) token*chunk.n_head_kv + head;
            int n_visible;
            n_rows[list] = list_kept(*layer.owner, layer, sight, stream, head, chunk.n_cells, cells + list*space.stride, n_visible);
        }
    }

    return { cells, nullptr, n_rows, space.stride };
}

// A thread attends whole chunks by itself, so that there is nothing to wait for.
void run_attend_prompt(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const Layer &       layer    = *static_cast<const Layer *>(userdata);
    edgekv_context &    ctx      = *layer.owner;
    const ggml_tensor * mask     = dst->src[ATTEND_MASK];
    const ggml_tensor * k        = dst->src[ATTEND_K];
    const bool          listed   = ctx.hierarchy.any_dropped(layer.info.row);
    const bool          glimpsed = ctx.glimpses(k);
    char * const        memory   = ctx.prompt_workspaces[ith].data();

    for (int64_t s = 0; s < k->ne[3]; ++s) {
        AttendProblem all = make_problem(layer, dst, s);
        const PromptSpace space(all);
        const int n_chunks = (all.n_tokens + kMaxQueryTokens - 1)/kMaxQueryTokens;

        for (int i = ith; i < n_chunks; i += nth) {
            // the last chunk is a whole one: it is what is observed
            const int end   = all.n_tokens - (n_chunks - 1 - i)*kMaxQueryTokens;
            const int first = std::max(0, end - kMaxQueryTokens);

            AttendProblem chunk = all;
            chunk.n_tokens = end - first;
            chunk.q    += first*all.q_stride_token;
            chunk.mask += first*all.mask_stride_token;
            chunk.out  += first*all.out_stride_token;
            if (!glimpsed || i + 1 < n_chunks) {
                chunk.mass_max = chunk.mass_sum = nullptr;
            }
            if (listed) {
                chunk.rows = list_rows(layer, mask, chunk, (int) (s + k->view_offs/k->nb[3]), space, memory);
            }
            attend_run(chunk, memory, 0, 1, selected_isa());
            if (chunk.mass_max) {
                if (!listed) {
                    attend_observe(chunk, memory, 0, 1, selected_isa());
                }
                ctx.n_glimpsed.store(chunk.n_tokens, std::memory_order_relaxed);
            }
        }
    }
    if (ith == 0) {
        ctx.attended.store(true, std::memory_order_relaxed);
    }
}

void run_glimpse(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const Layer &       layer   = *static_cast<const Layer *>(userdata);
    edgekv_context &    ctx     = *layer.owner;
    const AttendProblem problem = make_problem(layer, dst, 0);

    attend_run(problem, ctx.workspaces[0].data(), ith, nth, selected_isa());
    if (ith == 0) {
        ctx.n_glimpsed.store(problem.n_tokens, std::memory_order_relaxed);
    }
}

}  // namespace

size_t prompt_workspace_bytes(const AttendProblem & problem) {
    return PromptSpace(problem).bytes;
}

ggml_tensor * build_attend_prompt(edgekv_context & ctx, Layer & layer, const llama_edgekv_attend & args) {
    ggml_tensor * sources[N_ATTEND_SOURCES] = { args.q, args.k, args.v, args.mask, args.sinks, nullptr };
    ggml_tensor * node = ggml_custom_4d(args.ctx, GGML_TYPE_F32, args.q->ne[0]*args.q->ne[1], args.q->ne[2], 1, 1,
                                        sources, N_ATTEND_SOURCES, run_attend_prompt, GGML_N_TASKS_MAX, &layer);
    ggml_format_name(node, "edgekv_attend_prompt-%d", args.il);

    AttendProblem problem = make_problem(layer, node, 0);
    if (ctx.params.observe) {
        problem.mass_max = problem.mass_sum = reinterpret_cast<float *>(ctx.observation.data());
    }
    if (!ctx.reserve_prompt(problem)) {
        return nullptr;  // the stock nodes need none; they attend what is dropped and still there
    }
    ggml_build_forward_expand(args.gf, node);

    return node;
}

void build_glimpse(edgekv_context & ctx, Layer & layer, const llama_edgekv_attend & args) {
    const ggml_tensor * q     = args.q;
    const ggml_tensor * mask  = args.mask;
    const int64_t       n     = std::min<int64_t>(q->ne[2], kMaxQueryTokens);
    const int64_t       first = q->ne[2] - n;

    ggml_tensor * sources[N_ATTEND_SOURCES] = {
        ggml_view_3d(args.ctx, args.q, q->ne[0], q->ne[1], n, q->nb[1], q->nb[2], first*q->nb[2]), args.k, args.v,
        ggml_view_2d(args.ctx, args.mask, mask->ne[0], n, mask->nb[1], first*mask->nb[1]), args.sinks, nullptr,
    };
    ggml_tensor * node = ggml_custom_4d(args.ctx, GGML_TYPE_F32, q->ne[0]*q->ne[1], n, 1, 1, sources, N_ATTEND_SOURCES, run_glimpse,
                                        GGML_N_TASKS_MAX, &layer);
    ggml_format_name(node, "edgekv_glimpse-%d", args.il);
    if (!ctx.reserve_workspace(make_problem(layer, node, 0), 1)) {
        return;  // the policy learns nothing of this ubatch
    }
    ggml_build_forward_expand(args.gf, node);
    ggml_build_forward_expand(args.gf, build_observe(layer, args, node));
}

}  // namespace edgekv
