// The nodes of a plane on a device. The kernels' arguments depend only on a node's sources and parameters, so that a recorded CUDA graph
// is replayed only for an equal graph. K and V are not sources: they lie in host memory, and the scheduler would copy
// them. For an emulated device the CPU backend runs the nodes, on one thread, and waits for each; or the backend of native/tests/backend does, as
// ggml's CUDA backend.
#include "state/state.h"
#include "attention/cuda/cuda_nodes.h"
#include "attention/cuda/device_plane.h"
#include "attention/cuda/engine_sizes.h"

#include "ggml-impl.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace edgekv {
namespace {

enum DeviceStoreSource { STORE_K_CUR, STORE_V_CUR, STORE_K_IDXS, STORE_V_IDXS, N_STORE_SOURCES };
// The sources of an attend node that stores are followed by those of a store node.
enum DeviceAttendSource { ATTEND_Q, ATTEND_MASK, ATTEND_K_IDXS, ATTEND_SINKS, N_ATTEND_SOURCES };
static_assert(N_ATTEND_SOURCES + N_STORE_SOURCES <= GGML_MAX_SRC, "a node has place for them");

// These follow ggml_custom_op_params in a node's parameters.
struct NodeParams {
    EngineView view;
    int16_t next_layer;  // the layer that this node prepares, -1: none
    uint16_t flags;
    int32_t piece;       // that a node stages
};
enum NodeFlag : uint16_t { SKETCHES = 1, OBSERVES = 2, STAGES = 4, SELECTS = 8, JOINED = 16 };  // joined: the attend node stores, not the store node
static_assert(sizeof(ggml_custom_op_params) + sizeof(NodeParams) <= GGML_MAX_OP_PARAMS, "they must fit behind ggml's");

void set_params(ggml_tensor * node, const NodeParams & params) {
    std::memcpy(reinterpret_cast<char *>(node->op_params) + sizeof(ggml_custom_op_params), &params, sizeof(params));
}

NodeParams get_params(const ggml_tensor * node) {
    NodeParams params;
    std::memcpy(&params, reinterpret_cast<const char *>(node->op_params) + sizeof(ggml_custom_op_params), sizeof(params));
    return params;
}

EngineView view_of(const Engine & engine, const ggml_tensor * k, int64_t n_tokens) {
    EngineView view = {};
    view.n_cells      = static_cast<int32_t>(k->ne[2]);
    view.n_streams    = static_cast<int32_t>(k->ne[3]);
    view.first_stream = first_stream(k);
    view.n_tokens     = static_cast<int32_t>(n_tokens / k->ne[3]);
    view.generation   = engine.generation();
    return view;
}

// ---- running -----------------------------------------------------------------------------------------------------------------

const char * data(const ggml_tensor * t) { return t ? static_cast<const char *>(t->data) : nullptr; }

// `src`: the sources of a store node, wherever they are.
EngineStore store_of(ggml_tensor * const * src, uint16_t flags) {
    EngineStore args = {};
    args.k = data(src[STORE_K_CUR]);
    args.v = data(src[STORE_V_CUR]);
    args.k_stride_token = src[STORE_K_CUR]->nb[2];
    args.k_stride_head  = src[STORE_K_CUR]->nb[1];
    args.v_stride_token = src[STORE_V_CUR]->nb[2];
    args.v_stride_head  = src[STORE_V_CUR]->nb[1];
    args.k_idxs = static_cast<const int64_t *>(src[STORE_K_IDXS]->data);
    args.v_idxs = static_cast<const int64_t *>(src[STORE_V_IDXS]->data);
    args.sketch   = flags & SKETCHES;
    return args;
}

// n_heads is below 1 behind a layer's last piece.
EnginePiece piece_of(const DevicePlane & plane, int layer, int piece) {
    const int n = plane.ctx.hooked[layer]->info.n_head_kv, each = engine_piece_heads(n, plane.staging.n_pieces());
    return { layer, piece * each, std::min(each, n - piece * each), static_cast<char *>(plane.staging.k(layer, piece)->data),
             static_cast<char *>(plane.staging.v(layer, piece)->data) };
}

// The piece that is staged behind a node's, if that can begin beside it: the layer's next, or the next layer's first.
EnginePiece piece_behind(const DeviceLayer & layer, const NodeParams & params) {
    const DevicePlane & plane = *layer.plane;
    if (plane.staging.n_buffers() == 1) {
        return kNoPiece;
    }
    EnginePiece next = piece_of(plane, layer.index, params.piece + 1);
    if (next.n_heads < 1) {
        next = params.next_layer >= 0 ? piece_of(plane, params.next_layer, 0) : kNoPiece;
    }
    return next.layer >= 0 && next.k != piece_of(plane, layer.index, params.piece).k ? next : kNoPiece;  // a layer between may have other nodes
}

void run_store_on(const DeviceLayer & layer, const ggml_tensor * node, void * stream) {
    const NodeParams params = get_params(node);
    const bool       stages = params.flags & STAGES;
    if (params.flags & JOINED) {
        return;
    }

    EngineStore args = store_of(node->src + (stages ? 1 : 0), params.flags);  // the first source of an in-place node is the buffer
    if (stages) {
        args.piece = piece_of(*layer.plane, layer.index, 0);
        args.next  = piece_behind(layer, params);
    }
    layer.plane->engine->store(layer.index, params.view, args, stream);
}

void run_stage_on(const DeviceLayer & layer, const ggml_tensor * node, void * stream) {
    const NodeParams params = get_params(node);
    layer.plane->engine->stage(piece_of(*layer.plane, layer.index, params.piece), piece_behind(layer, params), params.view, stream);
}

EngineQuery query_of(const DeviceLayer & layer, const ggml_tensor * q, const ggml_tensor * mask, const ggml_tensor * k_idxs, const ggml_tensor * sinks) {
    return { data(q), q->nb[2], q->nb[1], mask_type(mask), data(mask), mask->nb[1], mask->nb[3],
             static_cast<const int64_t *>(k_idxs->data), reinterpret_cast<const float *>(data(sinks)), layer.nodes().scale, layer.nodes().softcap };
}

// Selection and attention are one node: in a longer step, one group of tokens after the other selects and attends in the same buffers. Where sketches
// select, it also stores, because the launch that scans them does.
void run_attend_on(const DeviceLayer & layer, const ggml_tensor * node, void * stream) {
    const DevicePlane & plane  = *layer.plane;
    const NodeParams    params = get_params(node);

    const EngineStore store = params.flags & JOINED ? store_of(node->src + N_ATTEND_SOURCES, params.flags) : EngineStore{};
    EngineAttend args = {};
    args.store     = params.flags & JOINED ? &store : nullptr;
    args.query     = query_of(layer, node->src[ATTEND_Q], node->src[ATTEND_MASK], node->src[ATTEND_K_IDXS], node->src[ATTEND_SINKS]);
    args.out       = static_cast<char *>(node->data);
    args.selection = params.flags & SELECTS ? &plane.ctx.params.selection : nullptr;
    args.observe   = params.flags & OBSERVES;
    args.next_layer  = params.next_layer;
    if (plane.staging.n_pieces() == 1) {
        args.k_staging = static_cast<char *>(plane.staging.k(layer.index)->data);
        args.v_staging = static_cast<char *>(plane.staging.v(layer.index)->data);
    }
    plane.engine->attend(layer.index, params.view, args, stream);
}

using Run = void (*)(const DeviceLayer &, const ggml_tensor *, void *);

void run_node(Run run, const DeviceLayer & layer, const ggml_tensor * node, void * stream, bool waits) {
    Engine & engine = *layer.plane->engine;
    if (engine.begin_node(stream)) {
        char name[64];  // llama.cpp renames the last node of a layer's attention
        std::snprintf(name, sizeof(name), "edgekv_%s-%d", run == run_store_on ? "store" : run == run_stage_on ? "stage" : "attend", layer.layer->il);
        run(layer, node, stream);
        engine.end_node(name, stream, waits);
    }
}

// The CPU backend calls these functions; the device's backend knows the nodes by their addresses.
template <Run run>
void run_emulated(ggml_tensor * dst, int ith, int, void * userdata) {
    const DeviceLayer & layer = *static_cast<const DeviceLayer *>(userdata);
    if (ith == 0) {
        run_node(run, layer, dst, layer.plane->engine->stream(), true);
    }
}

constexpr ggml_custom_op_t kStore  = run_emulated<run_store_on>;
constexpr ggml_custom_op_t kStage  = run_emulated<run_stage_on>;
constexpr ggml_custom_op_t kAttend = run_emulated<run_attend_on>;

ggml_custom_op_params custom_params(const ggml_tensor * node) {
    ggml_custom_op_params params;
    std::memcpy(&params, node->op_params, sizeof(params));
    return params;
}

}  // namespace

bool device_node_supported(int device, const ggml_tensor * node) {
    const auto params = custom_params(node);
    if (params.fun != kStore && params.fun != kStage && params.fun != kAttend) {
        return false;
    }
    return static_cast<const DeviceLayer *>(params.userdata)->plane->serves(device);
}

bool device_graph_begin(int device, ggml_cgraph * graph) {
    const DevicePlane * plane = nullptr;
    EngineGraph hooked;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        if (node->op != GGML_OP_CUSTOM || !device_node_supported(device, node)) {
            continue;
        }
        const auto          params = custom_params(node);
        const DeviceLayer & layer  = *static_cast<const DeviceLayer *>(params.userdata);
        if (!plane) {
            plane = layer.plane;
            hooked.stores.resize(plane->ctx.shape.n_layers);
            hooked.attends.resize(plane->ctx.shape.n_layers);
            hooked.staged.resize(plane->ctx.shape.n_layers);
        }
        hooked.stores[layer.index]  = hooked.stores[layer.index] || params.fun == kStore;
        hooked.attends[layer.index] = hooked.attends[layer.index] || params.fun == kAttend;
        if (params.fun == kStage) {
            hooked.staged[layer.index] = piece_of(*plane, layer.index, get_params(node).piece).first_head;
        }
    }
    if (!plane) {
        return true;
    }
    plane->engine->begin_graph(hooked);
    return plane->engine->records();
}

void device_node_compute(int, ggml_tensor * node, void * stream) {
    const auto          params = custom_params(node);
    const DeviceLayer & layer  = *static_cast<const DeviceLayer *>(params.userdata);

    run_node(params.fun == kStore ? run_store_on : params.fun == kStage ? run_stage_on : run_attend_on, layer, node, stream, false);
}

// ---- building ----------------------------------------------------------------------------------------------------------------

static bool is_prompt(const ggml_tensor * k, int64_t n_tokens) { return n_tokens % k->ne[3] != 0 || n_tokens / k->ne[3] > kEngineTokens; }

bool DevicePlane::do_build_store(Layer & served, const llama_edgekv_store & args) {
    if (!storable(args)) {
        served.info.state = EDGEKV_LAYER_GRAPH;
        return false;
    }
    if (!graph.built) {
        graph = DeviceGraph(layers.size());
        graph.built = true;
    }

    DeviceLayer & layer  = of(served);
    const bool    prompt = is_prompt(args.k, args.k_cur->ne[2]);

    NodeParams params = {};
    params.view     = view_of(*engine, args.k, args.k_cur->ne[2]);
    params.flags    = static_cast<uint16_t>((ctx.may_select() ? SKETCHES : 0) | (prompt ? STAGES : 0));
    params.next_layer = static_cast<int16_t>(prompt && staging.n_buffers() > 1 ? next_layer(served) : -1);

    ggml_tensor * sources[N_STORE_SOURCES] = { args.k_cur, args.v_cur, args.k_idxs, args.v_idxs };
    ggml_tensor * node = prompt ? ggml_custom_inplace(args.ctx, staging.k(layer.index), sources, N_STORE_SOURCES, kStore, 1, &layer)
                                : ggml_custom_4d(args.ctx, GGML_TYPE_F32, 1, 1, 1, 1, sources, N_STORE_SOURCES, kStore, 1, &layer);
    set_params(node, params);
    ggml_format_name(node, "edgekv_store-%d", args.il);
    ggml_build_forward_expand(args.gf, node);

    layer.nodes().staged = prompt ? node : nullptr;
    layer.nodes().store  = prompt ? nullptr : node;
    graph.sketches = graph.sketches || params.flags & SKETCHES;
    graph.n_staged += prompt;
    graph.staged    = params.view;
    return true;
}

// Makes the stock nodes read the staged copy. One node stages both K and V.
static void attend_staged(const Staging & staging, const DeviceLayer & layer, const llama_edgekv_attend & args) {
    const auto as = [&](ggml_tensor * buffer, const ggml_tensor * view) {
        return ggml_view_4d(args.ctx, buffer, view->ne[0], view->ne[1], view->ne[2], view->ne[3], view->nb[1], view->nb[2], view->nb[3], view->view_offs);
    };
    *args.k_stock = as(layer.nodes().staged, args.k);
    *args.v_stock = as(staging.v(layer.index), args.v);
    layer.nodes().staged = nullptr;
}

// Attends a layer piece by piece with stock nodes, and joins the outputs of the heads. The first piece is staged already.
static ggml_tensor * attend_pieces(const DeviceLayer & layer, const llama_edgekv_attend & args) {
    const DevicePlane & plane = *layer.plane;
    ggml_context * ctx = args.ctx;
    ggml_tensor *  q   = args.q;
    ggml_tensor *  stage  = layer.nodes().staged;
    ggml_tensor *  joined = nullptr;
    NodeParams     params = get_params(stage);
    const int64_t  n_streams = args.k->ne[3], n_tokens = q->ne[2] / n_streams, n_cells = plane.ctx.shape.n_cells, group = q->ne[1] / args.k->ne[1];

    layer.nodes().staged = nullptr;
    for (int piece = 0; ; ++piece) {
        const EnginePiece of = piece_of(plane, layer.index, piece);
        if (of.n_heads < 1) {
            return joined;
        }
        ggml_tensor * v = plane.staging.v(layer.index, piece);
        if (piece > 0) {
            params.piece = piece;
            stage = ggml_custom_inplace(ctx, plane.staging.k(layer.index, piece), &joined, 1, kStage, 1, const_cast<DeviceLayer *>(&layer));
            set_params(stage, params);
            ggml_format_name(stage, "edgekv_stage-%d-%d", args.il, piece);
        }
        const auto rows = [&](ggml_tensor * buffer, const ggml_tensor * whole) {
            const size_t row = ggml_row_size(whole->type, whole->ne[0]), cell = of.n_heads * row, stream = n_cells * cell;
            return ggml_permute(ctx, ggml_view_4d(ctx, buffer, whole->ne[0], of.n_heads, whole->ne[2], n_streams, row, cell, stream,
                                                  params.view.first_stream * stream), 0, 2, 1, 3);
        };
        ggml_tensor * queries = ggml_permute(ctx, ggml_view_4d(ctx, q, q->ne[0], of.n_heads * group, n_tokens, n_streams, q->nb[1], q->nb[2],
                                                               q->nb[2] * n_tokens, of.first_head * group * q->nb[1]), 0, 2, 1, 3);
        ggml_tensor * out = ggml_flash_attn_ext(ctx, queries, rows(stage, args.k), rows(v, args.v), args.mask, args.scale, args.max_bias, args.softcap);
        ggml_flash_attn_ext_add_sinks(out, args.sinks ? ggml_view_1d(ctx, args.sinks, of.n_heads * group, of.first_head * group * sizeof(float)) : nullptr);
        ggml_prec_set_acc(out, GGML_PREC_F32);
        out    = ggml_reshape_2d(ctx, out, out->ne[0] * out->ne[1], out->ne[2] * out->ne[3]);
        joined = joined ? ggml_concat(ctx, joined, out, 0) : out;
        ggml_build_forward_expand(args.gf, joined);
    }
}

ggml_tensor * DevicePlane::do_build_attend(Layer & served, const llama_edgekv_attend & args) {
    DeviceLayer & layer = of(served);
    DeviceNodes & nodes = layer.nodes();
    if (nodes.staged && piece_of(*this, layer.index, 1).n_heads > 0) {
        if (attendable(args) && args.max_bias == 0.0f) {
            return attend_pieces(layer, args);
        }
        nodes.staged = nullptr;
        served.info.state = EDGEKV_LAYER_GRAPH;
        return nullptr;
    }
    if (nodes.staged) {
        attend_staged(staging, layer, args);
        return nullptr;
    }
    if (!attendable(args)) {
        served.info.state = EDGEKV_LAYER_GRAPH;
        return nullptr;
    }
    if (!nodes.store) {
        return nullptr;
    }

    nodes.scale   = args.scale;
    nodes.softcap = args.softcap;

    const bool selects = ctx.selects(static_cast<int>(args.k->ne[2])) && !ctx.all_read_all();
    NodeParams params  = {};
    params.view     = view_of(*engine, args.k, args.q->ne[2]);
    params.next_layer = -1;
    const bool reserved = engine->reserve_workspace(layer.index, params.view, selects);
    served.had_memory(reserved, false);
    if (!reserved) {
        return nullptr;  // the scheduler copies K and V for the stock nodes: slow but correct
    }
    params.view.generation = engine->generation();

    ggml_tensor * const store = nodes.store;
    ggml_tensor * sources[N_ATTEND_SOURCES + N_STORE_SOURCES] = { args.q, args.mask, store->src[STORE_K_IDXS], args.sinks };
    nodes.store = nullptr;
    if (selects) {
        params.view.leads  = !graph.leader_built;
        graph.leader_built = true;
    } else {
        params.view.leads = !graph.leads_all;
        graph.leads_all   = true;
        params.next_layer   = static_cast<int16_t>(ctx.params.mode == EDGEKV_MODE_EXACT ? next_layer(served) : -1);
    }
    params.flags = static_cast<uint16_t>((selects ? SELECTS : 0) | (ctx.params.observe ? OBSERVES : 0));
    if (selects) {
        NodeParams of_store = get_params(store);
        of_store.flags |= JOINED;
        set_params(store, of_store);
        params.flags |= of_store.flags & (JOINED | SKETCHES);
        std::copy_n(store->src, N_STORE_SOURCES, sources + N_ATTEND_SOURCES);
    }
    graph.attends    = true;
    graph.n_observed = ctx.params.observe ? engine_observed(params.view.n_tokens) * params.view.n_streams : 0;

    ggml_tensor * node = ggml_custom_4d(args.ctx, GGML_TYPE_F32, args.q->ne[0] * args.q->ne[1], args.q->ne[2], 1, 1, sources,
                                        N_ATTEND_SOURCES + (selects ? N_STORE_SOURCES : 0), kAttend, 1, &layer);
    set_params(node, params);
    ggml_format_name(node, "edgekv_attend-%d", args.il);
    ggml_build_forward_expand(args.gf, node);
    return node;
}

}  // namespace edgekv
