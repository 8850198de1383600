// The nodes of a context on a device. A node's parameters carry all that its kernels' arguments depend on besides its sources, so that a
// recorded CUDA graph is replayed for the same graph only. K and V are no sources: they lie in host memory, and the scheduler would copy
// them. On an emulated device the CPU backend runs the nodes, on one thread, and waits for each.
#include "nodes.h"

#include "ggml-impl.h"

#include <cstdio>
#include <cstring>

namespace edgekv {

namespace {

enum StoreSource { STORE_K_CUR, STORE_V_CUR, STORE_K_IDXS, STORE_V_IDXS, N_STORE_SOURCES };
enum AttendSource { ATTEND_Q, ATTEND_MASK, ATTEND_K_IDXS, ATTEND_SINKS, N_ATTEND_SOURCES };

// Behind ggml_custom_op_params in a node's parameters.
struct NodeParams {
    EngineView view;
    int16_t next_row;  // that this node prepares, -1: none
    uint16_t flags;
};
enum NodeFlag : uint16_t { SKETCHES = 1, OBSERVES = 2, STAGES = 4, SELECTS = 8 };
static_assert(sizeof(ggml_custom_op_params) + sizeof(NodeParams) <= GGML_MAX_OP_PARAMS, "they must fit behind ggml's");

void set_params(ggml_tensor * node, const NodeParams & params) {
    std::memcpy(reinterpret_cast<char *>(node->op_params) + sizeof(ggml_custom_op_params), &params, sizeof(params));
}

NodeParams get_params(const ggml_tensor * node) {
    NodeParams params;
    std::memcpy(&params, reinterpret_cast<const char *>(node->op_params) + sizeof(ggml_custom_op_params), sizeof(params));

    return params;
}

EngineView view_of(edgekv_context & ctx, const ggml_tensor * k, int64_t n_tokens) {
    EngineView view = {};
    view.n_cells      = (int32_t) k->ne[2];
    view.n_streams    = (int32_t) k->ne[3];
    view.first_stream = (int32_t) (k->view_offs/k->nb[3]);
    view.n_tokens     = (int32_t) (n_tokens/k->ne[3]);
    view.generation   = ctx.plane->generation();

    return view;
}

// ---- running -----------------------------------------------------------------------------------------------------------------

const char * data(const ggml_tensor * t) {
    return t ? static_cast<const char *>(t->data) : nullptr;
}

void run_store_on(const Layer & layer, const ggml_tensor * node, void * stream) {
    const NodeParams params = get_params(node);
    const bool       stages = params.flags & STAGES;
    const int        first  = stages ? 1 : 0;  // the first source of an in-place node is the buffer
    const auto       src    = [&](StoreSource i) { return node->src[first + i]; };
    const Staging &  buffer = layer.owner->staging;

    EngineStore args = {};
    args.k = data(src(STORE_K_CUR));
    args.v = data(src(STORE_V_CUR));
    args.k_stride_token = src(STORE_K_CUR)->nb[2];
    args.k_stride_head  = src(STORE_K_CUR)->nb[1];
    args.v_stride_token = src(STORE_V_CUR)->nb[2];
    args.v_stride_head  = src(STORE_V_CUR)->nb[1];
    args.k_idxs = static_cast<const int64_t *>(src(STORE_K_IDXS)->data);
    args.v_idxs = static_cast<const int64_t *>(src(STORE_V_IDXS)->data);
    args.sketch   = params.flags & SKETCHES;
    args.next_row = params.next_row;
    if (stages) {
        args.k_staging = static_cast<char *>(buffer.k(layer.info.row)->data);
        args.v_staging = static_cast<char *>(buffer.v(layer.info.row)->data);
        if (params.next_row >= 0) {
            args.k_next = static_cast<char *>(buffer.k(params.next_row)->data);
            args.v_next = static_cast<char *>(buffer.v(params.next_row)->data);
        }
    }
    layer.owner->plane->store(layer.info.row, params.view, args, stream);
}

EngineQuery query_of(const Layer & layer, const ggml_tensor * q, const ggml_tensor * mask, const ggml_tensor * k_idxs, const ggml_tensor * sinks) {
    return { data(q), q->nb[2], q->nb[1], mask->type == GGML_TYPE_F16 ? MaskType::f16 : MaskType::f32, data(mask), mask->nb[1], mask->nb[3],
             static_cast<const int64_t *>(k_idxs->data), reinterpret_cast<const float *>(data(sinks)), layer.scale, layer.softcap };
}

// Selection and attention are one node: of a longer step, groups of tokens select and attend one behind the other in the same buffers.
void run_attend_on(const Layer & layer, const ggml_tensor * node, void * stream) {
    const edgekv_context & ctx    = *layer.owner;
    const NodeParams       params = get_params(node);

    EngineAttend args = {};
    args.query     = query_of(layer, node->src[ATTEND_Q], node->src[ATTEND_MASK], node->src[ATTEND_K_IDXS], node->src[ATTEND_SINKS]);
    args.out       = static_cast<char *>(node->data);
    args.selection = params.flags & SELECTS ? &ctx.params.selection : nullptr;
    args.observe   = params.flags & OBSERVES;
    args.next_row  = params.next_row;
    args.k_staging = static_cast<char *>(ctx.staging.k(layer.info.row)->data);
    args.v_staging = static_cast<char *>(ctx.staging.v(layer.info.row)->data);
    ctx.plane->attend(layer.info.row, params.view, args, stream);
}

using Run = void (*)(const Layer &, const ggml_tensor *, void *);

void run_node(Run run, const Layer & layer, const ggml_tensor * node, void * stream, bool waits) {
    Engine & plane = *layer.owner->plane;
    if (plane.begin_node()) {
        char name[64];  // llama.cpp gives the last node of a layer's attention another
        std::snprintf(name, sizeof(name), "edgekv_%s-%d", run == run_store_on ? "store" : "attend", layer.il);
        run(layer, node, stream);
        plane.end_node(name, stream, waits);
    }
}

// as the CPU backend calls it; their addresses also name the nodes to the CUDA backend
template <Run run>
void run_emulated(ggml_tensor * dst, int ith, int, void * userdata) {
    const Layer & layer = *static_cast<const Layer *>(userdata);
    if (ith == 0) {
        run_node(run, layer, dst, layer.owner->plane->stream(), true);
    }
}

constexpr ggml_custom_op_t kStore  = run_emulated<run_store_on>;
constexpr ggml_custom_op_t kAttend = run_emulated<run_attend_on>;

ggml_custom_op_params custom_params(const ggml_tensor * node) {
    ggml_custom_op_params params;
    std::memcpy(&params, node->op_params, sizeof(params));

    return params;
}

ggml_tensor * place(const llama_edgekv_attend & args, ggml_tensor * node, const NodeParams & params, const char * name) {
    set_params(node, params);
    ggml_format_name(node, "%s-%d", name, args.il);
    ggml_build_forward_expand(args.gf, node);

    return node;
}

}  // namespace

bool device_node_supported(int device, const ggml_tensor * node) {
    const auto params = custom_params(node);
    if (params.fun != kStore && params.fun != kAttend) {
        return false;
    }
    const edgekv_context & ctx = *static_cast<const Layer *>(params.userdata)->owner;

    return ctx.plane && ctx.params.placement.kind == EDGEKV_DEVICE_CUDA && ctx.params.placement.index == device;
}

bool device_graph_begin(int device, ggml_cgraph * graph) {
    edgekv_context * ctx = nullptr;
    EngineGraph rows;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        if (node->op != GGML_OP_CUSTOM || !device_node_supported(device, node)) {
            continue;
        }
        const auto    params = custom_params(node);
        const Layer & layer  = *static_cast<const Layer *>(params.userdata);
        if (!ctx) {
            ctx = layer.owner;
            rows.stores.resize(ctx->n_rows);
            rows.attends.resize(ctx->n_rows);
        }
        rows.stores[layer.info.row]  = rows.stores[layer.info.row] || params.fun == kStore;
        rows.attends[layer.info.row] = rows.attends[layer.info.row] || params.fun == kAttend;
    }
    if (!ctx) {
        return true;
    }
    ctx->plane->begin_graph(rows);

    return ctx->plane->records();
}

void device_node_compute(int, ggml_tensor * node, void * stream) {
    const auto    params = custom_params(node);
    const Layer & layer  = *static_cast<const Layer *>(params.userdata);

    run_node(params.fun == kStore ? run_store_on : run_attend_on, layer, node, stream, false);
}

// ---- building ----------------------------------------------------------------------------------------------------------------

bool build_store_device(edgekv_context & ctx, Layer & layer, const llama_edgekv_store & args) {
    if (!ctx.graph.built) {
        ctx.graph = {};
        ctx.graph.built = true;
        ctx.leader_built = false;
    }

    const bool prompt = !ctx.attends(args.k, args.k_cur->ne[2]);

    NodeParams params = {};
    params.view     = view_of(ctx, args.k, args.k_cur->ne[2]);
    params.flags    = (uint16_t) ((ctx.sketches() ? SKETCHES : 0) | (prompt ? STAGES : 0));
    params.next_row = (int16_t) (prompt && ctx.staging.n_buffers() > 1 ? ctx.next_row(layer) : -1);

    ggml_tensor * sources[N_STORE_SOURCES] = { args.k_cur, args.v_cur, args.k_idxs, args.v_idxs };
    ggml_tensor * node = prompt ? ggml_custom_inplace(args.ctx, ctx.staging.k(layer.info.row), sources, N_STORE_SOURCES, kStore, 1, &layer)
                                : ggml_custom_4d(args.ctx, GGML_TYPE_F32, 1, 1, 1, 1, sources, N_STORE_SOURCES, kStore, 1, &layer);
    set_params(node, params);
    ggml_format_name(node, "edgekv_store-%d", args.il);
    ggml_build_forward_expand(args.gf, node);

    layer.staged = prompt ? node : nullptr;
    layer.k_idxs = args.k_idxs;
    ctx.graph.sketches = ctx.graph.sketches || params.flags & SKETCHES;
    ctx.graph.n_staged += prompt;
    ctx.graph.staged    = params.view;

    return true;
}

ggml_tensor * build_attend_device(edgekv_context & ctx, Layer & layer, const llama_edgekv_attend & args) {
    if (layer.staged) {
        // the stock nodes read the staged copy; V's is written by the same node
        ggml_tensor * v = ctx.staging.v(layer.info.row);
        const auto    as = [&](ggml_tensor * buffer, const ggml_tensor * view) {
            return ggml_view_4d(args.ctx, buffer, view->ne[0], view->ne[1], view->ne[2], view->ne[3], view->nb[1], view->nb[2], view->nb[3], view->view_offs);
        };
        *args.k_stock = as(layer.staged, args.k);
        *args.v_stock = as(v, args.v);
        layer.staged  = nullptr;
        layer.k_idxs  = nullptr;
        return nullptr;
    }
    if (!layer.k_idxs) {
        return nullptr;
    }

    layer.scale   = args.scale;
    layer.softcap = args.softcap;

    const bool selects = ctx.selects(layer, (int) args.k->ne[2]);
    const auto kind    = selects ? (SketchKind) ctx.params.selection.sketch : SketchKind::none;
    NodeParams params  = {};
    params.view     = view_of(ctx, args.k, args.q->ne[2]);
    params.next_row = -1;
    if (!ctx.plane->reserve_workspace(layer.info.row, params.view, kind, selects)) {
        return nullptr;  // the scheduler copies K and V for the stock nodes: slow, and right
    }
    params.view.generation = ctx.plane->generation();

    ggml_tensor * k_idxs = const_cast<ggml_tensor *>(layer.k_idxs);
    ggml_tensor * sources[N_ATTEND_SOURCES] = { args.q, args.mask, k_idxs, args.sinks };
    layer.k_idxs = nullptr;  // belongs to this graph
    if (selects) {
        params.view.leads = !ctx.leader_built;
        ctx.leader_built  = true;
    } else {
        params.view.leads   = !ctx.graph.leads_all;
        ctx.graph.leads_all = true;
        params.next_row     = (int16_t) (ctx.params.mode == EDGEKV_MODE_EXACT ? ctx.next_row(layer) : -1);
    }
    params.flags = (uint16_t) ((selects ? SELECTS : 0) | (ctx.params.observe ? OBSERVES : 0));
    ctx.graph.attends    = true;
    ctx.graph.n_observed = ctx.params.observe ? engine_observed(params.view.n_tokens)*params.view.n_streams : 0;

    ggml_tensor * node = ggml_custom_4d(args.ctx, GGML_TYPE_F32, args.q->ne[0]*args.q->ne[1], args.q->ne[2], 1, 1, sources,
                                        N_ATTEND_SOURCES, kAttend, 1, &layer);

    return place(args, node, params, "edgekv_attend");
}

}  // namespace edgekv
