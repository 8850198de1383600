// The node between storing and attending. It lists the rows that each query token reads in each KV head.
//
//   1. The node waits for the layer's rows, then handles one run of tokens after the other (Reading::selected).
//   2. Each thread gets the sights of the run's tokens; the first layer finds them for all layers (select_sight.cpp).
//   3. In mode sparse, thread 0 of that layer labels the tokens' cells, because their K and V in later layers depend on sampled rows.
//   4. Threads claim chunks of the sketches of a KV head and estimate shares of attention (select_scan.cpp).
//   5. The thread that completes the last chunk of a head lists the head's rows for all tokens (select_lists.cpp).
//
// The node reads Q, K, the mask, the cells' positions and the sketches. It writes the plane's select workspace, sights and row lists, the
// layer's sums, and the labels of cells. It allocates nothing: the decoding thread reserves all memory while it builds the graph.
#include "attention/cpu/select_parts.h"

namespace edgekv {

SelectPlan::SelectPlan(const HostLayer & layer, const ggml_tensor * k, const TokenRun & run, int n_threads) :
    SelectPlan(layer.layer->info, run.n, static_cast<int>(k->ne[2]), layer.plane->ctx.selects(static_cast<int>(k->ne[2])),
               layer.plane->ctx.params.mode == EDGEKV_MODE_EVICT, layer.plane->ctx.shape.n_heads, n_threads) {}

SelectPlan::SelectPlan(const edgekv_layer & info, int n_tokens, int n_cells, bool scans, bool keeps, int n_heads, int n_threads) :
    n_tokens(n_tokens), n_head_kv(info.n_head_kv), group(info.n_head / info.n_head_kv), n_cells(n_cells),
    n_groups((n_cells + kGroupCells - 1) / kGroupCells), n_queries(n_tokens * group), scans(scans), keeps(keeps) {
    n_chunks = scans ? (n_groups + kChunkGroups - 1) / kChunkGroups : 1;

    const size_t n_shares = scans ? static_cast<size_t>(n_head_kv) * n_queries : 0;
    cell_stride    = static_cast<size_t>(n_groups) * kGroupCells;
    group_stride   = static_cast<size_t>(n_groups + 15) / 16 * 16;
    shares_offset  = align64(HeadClaims::bytes(n_heads));
    tops_offset    = shares_offset + align64(n_shares * cell_stride * sizeof(uint16_t));
    sums_offset    = tops_offset + align64(n_shares * group_stride * sizeof(float));
    threads_offset = sums_offset + (sums_offset - tops_offset);
    scratch_offset = scans ? align64(sketch_query_bytes(info.head_dim, n_queries)) : 0;
    sight_offset   = scratch_offset + align64(sample_scratch_bytes(n_groups, group));
    sight_bytes    = static_cast<size_t>(n_tokens) * n_groups * sizeof(Sight);
    kept_offset    = sight_offset + align64(sight_bytes);
    thread_bytes   = kept_offset + (keeps ? align64(sight_bytes) : 0);
    bytes          = threads_offset + n_threads * thread_bytes;
}

SelectBytes select_bytes(const AttendProblem & problem, bool scans, bool keeps, int n_threads) {
    edgekv_layer info = {};
    info.n_head    = problem.n_head;
    info.n_head_kv = problem.n_head_kv;
    info.head_dim  = problem.head_dim;
    const SelectPlan plan(info, problem.n_tokens, problem.n_cells, scans, keeps, problem.n_head_kv, n_threads);
    const size_t     n_lists = static_cast<size_t>(plan.n_tokens) * plan.n_head_kv;
    return { plan.bytes, plan.sight_bytes, n_lists * (plan.cell_stride * (sizeof(int32_t) + sizeof(float)) + sizeof(int32_t)), plan.cell_stride };
}

bool HeadClaims::claim() {
    for (; n_tried < n_heads; ++n_tried, h = h + 1 == n_heads ? 0 : h + 1) {
        std::atomic<int> & next = heads[h].next;
        if (next.load(std::memory_order_relaxed) < n_chunks && (c = next.fetch_add(1, std::memory_order_relaxed)) < n_chunks) {
            return true;
        }
    }
    return false;
}

// ggml's barrier orders the zeros before the next node.
void HeadClaims::leave() {
    if (left.fetch_add(1, std::memory_order_acq_rel) + 1 == n_threads) {
        left.store(0, std::memory_order_relaxed);
        for (int i = 0; i < n_heads; ++i) {
            heads[i].next.store(0, std::memory_order_relaxed);
            heads[i].done.store(0, std::memory_order_relaxed);
        }
    }
}

namespace {

void label_cells(const SelectThread & thread) {
    const llama_edgekv_cells cells = thread.plane().cells_of(thread.stream);
    for (int token = 0; token < thread.plan.n_tokens; ++token) {
        if (!thread.leaves(token)) {
            cells.labels[thread.cell_of(token)] |= LLAMA_EDGEKV_SAMPLED;
        }
    }
}

void run_select(ggml_tensor * dst, int ith, int nth, void * userdata) {
    HostLayer &         layer = *static_cast<HostLayer *>(userdata);
    const State &       ctx   = layer.plane->ctx;
    const ggml_tensor * q     = dst->src[SELECT_Q];
    const ggml_tensor * k     = dst->src[SELECT_K];

    layer.plane->ctx.arrivals.wait(layer.layer->il);
    for (const TokenRun & run : layer.nodes().reading.selected) {
        const SelectPlan   plan(layer, k, run, nth);
        const int64_t      first  = run.stream * (q->ne[2] / k->ne[3]) + run.first;
        const SelectThread thread = { layer, dst, plan, run, first, run.stream + first_stream(k), ith };
        const TokenSights  sights(thread);
        if (layer.nodes().leads && ith == 0 && ctx.params.mode == EDGEKV_MODE_SPARSE) {
            label_cells(thread);
        }

        ShareScan       scan(thread, sights);
        const RowLister lister(thread, sights);
        HeadClaims      claims(plan, thread.workspace(), ith, nth);
        while (claims.claim()) {
            if (plan.scans && !sights.are_few()) {
                scan.scan(claims.head(), claims.chunk());
            }
            if (claims.completes_head()) {
                lister.list(claims.head());
            }
        }
        claims.leave();
    }
}

}  // namespace

ggml_tensor * build_select(HostLayer & layer, const llama_edgekv_attend & args) {
    HostPlane &  plane = *layer.plane;
    LayerNodes & nodes = plane.build(layer);

    for (const TokenRun & run : nodes.reading.selected) {
        const SelectPlan plan(layer, args.k, run, plane.n_threads);
        if (!plane.select_workspaces[run.workspace].reserve(plan.bytes) ||
            !plane.sights[run.workspace].reserve(plan.sight_bytes) ||
            !plane.lists_of(layer, run).reserve(plan.n_tokens, plan.n_head_kv, plan.cell_stride, plane.disk.keeps(layer.index))) {
            return nullptr;
        }
        plane.lists_of(layer, run).weighted = plan.scans;
    }
    nodes.leads            = !plane.graph.has_leader;
    plane.graph.has_leader = true;

    ggml_tensor * sources[N_SELECT_SOURCES] = { args.q, args.k, args.mask, const_cast<ggml_tensor *>(nodes.k_idxs), args.sinks };
    ggml_tensor * node =
        ggml_custom_4d(args.ctx, GGML_TYPE_F32, 1, 1, 1, 1, sources, N_SELECT_SOURCES, run_select, GGML_N_TASKS_MAX, &layer);
    ggml_format_name(node, "edgekv_select-%d", args.il);
    return node;
}

}  // namespace edgekv
