#include "nodes_internal.h"

#include "backends.h"

#include <algorithm>

namespace edgekv {

// ---- store -------------------------------------------------------------------------------------------------------------------

namespace {

enum StoreSource { STORE_K_CUR, STORE_V_CUR, STORE_K_IDXS, STORE_V_IDXS, STORE_K, STORE_V, N_STORE_SOURCES };

// one head of one token; the same conversion as ggml_set_rows, so that the cache holds the same bits as with the stock nodes
void store_head(const ggml_tensor * cur, const ggml_tensor * idxs, const ggml_tensor * view, int64_t token, int64_t head) {
    const ggml_tensor * cache = view->view_src;
    const int64_t row         = static_cast<const int64_t *>(idxs->data)[token];
    const int64_t n           = cur->ne[0];

    char *        dst = static_cast<char *>(cache->data) + row*cache->nb[1] + head*ggml_row_size(cache->type, n);
    const float * src = reinterpret_cast<const float *>(static_cast<const char *>(cur->data) + token*cur->nb[2] + head*cur->nb[1]);

    cpu_type_traits(cache->type)->from_float(src, dst, n);
}

void sketch_head(const Layer & layer, const ggml_tensor * view, int head) {
    const ggml_tensor * cache = view->view_src;
    const Hierarchy &   tiers = layer.owner->hierarchy;

    SketchKeys keys = {};
    keys.type        = cache->type == GGML_TYPE_Q8_0 ? CellType::q8_0 : CellType::f16;
    keys.stride_cell = cache->nb[1];
    keys.stride_head = ggml_row_size(cache->type, layer.info.head_dim);

    for (const StaleGroup & stale : tiers.stale_groups()) {
        keys.k = static_cast<const char *>(cache->data) + stale.stream*cache->nb[2];
        sketch_build(tiers.sketch(layer.info.row, stale.stream), keys, head, stale.group, stale.valid, selected_isa());
    }
}

// A head's K is stored and sketched by one thread: the sketch needs the rows of all tokens, and there is no barrier between.
void run_store(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const Layer & layer    = *static_cast<const Layer *>(userdata);
    const int64_t n_heads  = dst->src[STORE_K_CUR]->ne[1];
    const int64_t n_tokens = dst->src[STORE_K_CUR]->ne[2];
    const bool    sketched = layer.owner->sketches();

    for (int64_t unit = ith; unit < n_heads + n_tokens; unit += nth) {
        if (unit < n_heads) {
            for (int64_t token = 0; token < n_tokens; ++token) {
                store_head(dst->src[STORE_K_CUR], dst->src[STORE_K_IDXS], dst->src[STORE_K], token, unit);
            }
            if (sketched) {
                sketch_head(layer, dst->src[STORE_K], (int) unit);
            }
        } else {
            for (int64_t head = 0; head < n_heads; ++head) {
                store_head(dst->src[STORE_V_CUR], dst->src[STORE_V_IDXS], dst->src[STORE_V], unit - n_heads, head);
            }
        }
    }
    if (ith == 0 && layer.owner->params.mode == EDGEKV_MODE_SPARSE) {
        layer.owner->sketched.store(true, std::memory_order_relaxed);
    }
}

bool storable(const ggml_tensor * cur, const ggml_tensor * idxs, const ggml_tensor * view) {
    const ggml_tensor * cache = view->view_src;

    // heads of a token lie side by side, and streams behind each other, as the row index assumes
    return cur->type == GGML_TYPE_F32 && cur->nb[0] == sizeof(float) && cur->nb[1] == cur->ne[0]*sizeof(float) &&
           idxs->type == GGML_TYPE_I64 && cur->ne[0]*cur->ne[1] == cache->ne[0] &&
           cache->nb[2] == cache->ne[1]*cache->nb[1];
}

// ---- attend ------------------------------------------------------------------------------------------------------------------

const char * at(const ggml_tensor * t, size_t offset) {
    return static_cast<const char *>(t->data) + offset;
}

}  // namespace

AttendProblem make_problem(const Layer & layer, const ggml_tensor * dst, int64_t s) {
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
    p.page_tokens = layer.owner->params.page_tokens;

    p.q_stride_token = q->nb[2];
    p.q_stride_head  = q->nb[1];

    p.k_type        = k->type == GGML_TYPE_Q8_0 ? CellType::q8_0 : CellType::f16;
    p.k_stride_cell = k->nb[2];
    p.k_stride_head = k->nb[1];
    p.v_type        = v->type == GGML_TYPE_Q8_0 ? CellType::q8_0 : CellType::f16;
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
        const int stream = (int) (s + k->view_offs/k->nb[3]);
        p.mass_max    = layer.owner->mass_max(layer, stream);
        p.mass_sum    = layer.owner->mass_sum(layer, stream);
        p.mass_stride = layer.owner->n_pages;
    }

    return p;
}

namespace {

// the rows that the node before this one selected, and where they lie
void add_rows(Layer & layer, const ggml_tensor * dst, int64_t s, AttendProblem & p) {
    edgekv_context & ctx    = *layer.owner;
    const int        stream = (int) (s + dst->src[ATTEND_K]->view_offs/dst->src[ATTEND_K]->nb[3]);
    const RowLists & lists  = ctx.lists_of(layer, s);

    p.rows.cells   = reinterpret_cast<const int32_t *>(lists.cells.data());
    p.rows.weights = ctx.sketches() ? reinterpret_cast<const float *>(lists.weights.data()) : nullptr;
    p.rows.n_rows  = reinterpret_cast<const int32_t *>(lists.n_rows.data());
    p.rows.stride  = lists.stride;
    p.error_every  = ctx.params.selection.error_every;
    p.error_turn   = (int) ((ctx.n_ubatch + layer.info.row)%std::max(1, p.error_every));

    p.arena.data         = ctx.hierarchy.arena_data();
    p.arena.slot_bytes   = ctx.hierarchy.dims.slot_bytes;
    p.arena.v_offset     = p.page_tokens*ggml_row_size(layer.seam.k->type, p.head_dim);
    p.arena.slots        = ctx.hierarchy.slots(layer.info.row, stream, 0);
    p.arena.slots_stride = ctx.n_pages;

    p.hits = layer.hits.data() + (size_t) stream*p.n_head_kv;
}

void run_attend(ggml_tensor * dst, int ith, int nth, void * userdata) {
    Layer &          layer = *static_cast<Layer *>(userdata);
    edgekv_context & ctx   = *layer.owner;

    const int64_t n_stream = dst->src[ATTEND_K]->ne[3];

    for (int64_t s = 0; s < n_stream; ++s) {
        AttendProblem problem = make_problem(layer, dst, s);
        if (dst->src[ATTEND_SELECTED]) {
            add_rows(layer, dst, s, problem);
        }
        // no barrier between streams, so each has a workspace of its own
        attend_run(problem, ctx.workspaces[s].data(), ith, nth, selected_isa());
    }

    if (ith == 0) {
        ctx.attended.store(Attended::decode, std::memory_order_relaxed);
    }
}

// follows its attend node before anything else uses the workspace
void run_observe(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const Layer &       layer = *static_cast<const Layer *>(userdata);
    const ggml_tensor * node  = dst->src[0];

    for (int64_t s = 0; s < node->src[ATTEND_K]->ne[3]; ++s) {
        attend_observe(make_problem(layer, node, s), layer.owner->workspaces[s].data(), ith, nth, selected_isa());
    }
}

bool attendable(const llama_edgekv_attend & args) {
    const ggml_tensor * q    = args.q;
    const ggml_tensor * k    = args.k;
    const ggml_tensor * v    = args.v;
    const ggml_tensor * mask = args.mask;

    return args.plain && q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) && q->ne[0] == k->ne[0] && v->ne[0] == k->ne[0] &&
           v->ne[2] == k->ne[2] && q->ne[1] % k->ne[1] == 0 &&
           (mask->type == GGML_TYPE_F16 || mask->type == GGML_TYPE_F32) && mask->ne[0] == k->ne[2] && mask->ne[3] == k->ne[3] &&
           mask->ne[1]*mask->ne[3] == q->ne[2] &&
           (!args.sinks || args.sinks->type == GGML_TYPE_F32);
}

// the node that follows its attend node: turns what that left in the workspace into attention mass
ggml_tensor * build_observe(Layer & layer, const llama_edgekv_attend & args, ggml_tensor * attend) {
    ggml_tensor * node = ggml_custom_4d(args.ctx, GGML_TYPE_F32, 1, 1, 1, 1, &attend, 1, run_observe, GGML_N_TASKS_MAX, &layer);
    ggml_format_name(node, "edgekv_observe-%d", args.il);

    return node;
}

}  // namespace

bool build_store(edgekv_context & ctx, const llama_edgekv_store & args) {
    Layer * layer = ctx.served_layer(args.il, args.k);
    // longer ubatches are stored here only for their sketches, or for a device to read
    if (!layer || (!ctx.plane && !ctx.attends(args.k, args.k_cur->ne[2]) && ctx.params.mode != EDGEKV_MODE_SPARSE)) {
        return false;
    }
    if (!storable(args.k_cur, args.k_idxs, args.k) || !storable(args.v_cur, args.v_idxs, args.v)) {
        layer->info.state = EDGEKV_LAYER_GRAPH;
        return false;
    }
    if (ctx.plane) {
        return build_store_device(ctx, *layer, args);
    }

    ggml_tensor * sources[N_STORE_SOURCES] = { args.k_cur, args.v_cur, args.k_idxs, args.v_idxs, args.k, args.v };

    // the node's own value is not used; it exists for its place in the graph
    ggml_tensor * node =
        ggml_custom_4d(args.ctx, GGML_TYPE_F32, 1, 1, 1, 1, sources, N_STORE_SOURCES, run_store, GGML_N_TASKS_MAX, layer);
    ggml_format_name(node, "edgekv_store-%d", args.il);
    ggml_build_forward_expand(args.gf, node);
    layer->k_idxs = args.k_idxs;

    return true;
}

ggml_tensor * build_attend(edgekv_context & ctx, const llama_edgekv_attend & args) {
    Layer * layer = ctx.served_layer(args.il, args.k);
    const bool is_long = !ctx.plane && !ctx.attends(args.k, args.q->ne[2]);
    if (!layer) {
        return nullptr;
    }
    if (ctx.plane && layer->staged) {
        return build_attend_device(ctx, *layer, args);  // leaves the rest to the stock nodes
    }
    if (!attendable(args)) {
        layer->info.state = is_long ? layer->info.state : EDGEKV_LAYER_GRAPH;
        return nullptr;
    }
    if (ctx.plane) {
        return build_attend_device(ctx, *layer, args);
    }

    layer->scale   = args.scale;
    layer->softcap = args.softcap;
    if (is_long) {
        return build_attend_prompt(ctx, *layer, args);
    }

    ggml_tensor * sources[N_ATTEND_SOURCES] = { args.q, args.k, args.v, args.mask, args.sinks };
    if (ctx.selects(*layer, (int) args.k->ne[2])) {
        sources[ATTEND_SELECTED] = build_select(ctx, *layer, args);
        if (!sources[ATTEND_SELECTED]) {
            return nullptr;
        }
    }
    layer->k_idxs = nullptr;  // belongs to this graph

    ggml_tensor * node = ggml_custom_4d(args.ctx, GGML_TYPE_F32, args.q->ne[0]*args.q->ne[1], args.q->ne[2], 1, 1,
                                        sources, N_ATTEND_SOURCES, run_attend, GGML_N_TASKS_MAX, layer);
    ggml_format_name(node, "edgekv_attend-%d", args.il);

    AttendProblem problem = make_problem(*layer, node, 0);
    problem.rows.stride = sources[ATTEND_SELECTED] ? ctx.lists_of(*layer, 0).stride : 0;
    if (!ctx.reserve_workspace(problem, (int) args.k->ne[3])) {
        return nullptr;  // the stock nodes need none
    }

    ggml_build_forward_expand(args.gf, node);

    if (ctx.params.observe && !sources[ATTEND_SELECTED]) {
        ggml_build_forward_expand(args.gf, build_observe(*layer, args, node));
    }

    return node;
}

}  // namespace edgekv
