// The node that stores K and V and keeps the sketches up to date.
//
//   1. If there are sketches, each thread waits for the layer's rows: a group's sketch needs all its keys.
//   2. A unit of work is one KV head's K of some tokens, or one token's V of all heads; thread i takes every nth unit from i on. If a long
//      ubatch has more threads than heads, K is divided by the groups of cells that the tokens go to.
//   3. The thread converts the floats to the cache's type as ggml does, and writes them to home.
//   4. The thread that stored a head's K of a group rebuilds the group's sketch, so no barrier is needed in between.
//   5. Thread 0 tells the plane that this ubatch builds sketches (HostPlane::sketched).
//
// The node reads K and V of the new tokens, their cells and the list of stale groups. It writes home (llama.cpp's own tensors) and the plane's
// sketches. Two threads never write the same head's K of a group or the same token's V.
#include "attention/cpu/nodes.h"

#include "attention/backends.h"

#include <algorithm>

namespace edgekv {
namespace {

enum StoreSource { STORE_K_CUR, STORE_V_CUR, STORE_K_IDXS, STORE_V_IDXS, STORE_K, STORE_V, N_STORE_SOURCES };

// Stores one head of one token. It converts like ggml_set_rows, so the cache holds the same bits as with stock nodes.
void store_head(const ggml_tensor * cur, const ggml_tensor * idxs, const ggml_tensor * view, int64_t token, int64_t head) {
    const ggml_tensor * cache = view->view_src;
    const int64_t cell        = static_cast<const int64_t *>(idxs->data)[token];
    const int64_t n           = cur->ne[0];

    char *        dst = static_cast<char *>(cache->data) + cell * cache->nb[1] + head * ggml_row_size(cache->type, n);
    const float * src = reinterpret_cast<const float *>(static_cast<const char *>(cur->data) + token * cur->nb[2] + head * cur->nb[1]);

    cpu_type_traits(cache->type)->from_float(src, dst, n);
}

// A part of the cache's groups: those whose number leaves this rest.
struct GroupPart {
    int64_t rest, of;

    bool has(int64_t group) const { return of == 1 || group % of == rest; }
};

void sketch_head(const HostLayer & layer, const ggml_tensor * view, int head, GroupPart part) {
    const ggml_tensor * cache = view->view_src;

    SketchKeys keys = {};
    keys.type        = cell_type(cache);
    keys.stride_cell = cache->nb[1];
    keys.stride_head = layer.layer->k_row_bytes();

    for (const StaleGroup & stale : layer.plane->ctx.pages.stale.to_build()) {
        if (!part.has(stale.group)) {
            continue;
        }
        keys.k = static_cast<const char *>(cache->data) + stale.stream * cache->nb[2];
        if (const uint64_t valid = stale.valid & layer.plane->there(layer.index, stale.stream, stale.group)) {
            sketch_build(layer.plane->sketches.of(layer.index, stale.stream), keys, head, stale.group, valid, selected_isa());
        }
    }
}

void run_store(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const HostLayer & layer    = *static_cast<const HostLayer *>(userdata);
    HostPlane &       plane    = *layer.plane;
    const int64_t     n_heads  = dst->src[STORE_K_CUR]->ne[1];
    const int64_t     n_tokens = dst->src[STORE_K_CUR]->ne[2];
    const int64_t     n_values = dst->src[STORE_V_CUR] ? n_tokens : 0;
    const int64_t     n_parts  = std::max<int64_t>(1, std::min<int64_t>((nth + n_heads - 1) / n_heads, n_tokens / kGroupCells));
    const int64_t *   k_idxs   = static_cast<const int64_t *>(dst->src[STORE_K_IDXS]->data);
    const bool        sketched = plane.ctx.may_select();
    if (sketched) {
        plane.ctx.arrivals.wait(layer.layer->il);
    }

    for (int64_t unit = ith; unit < n_heads * n_parts + n_values; unit += nth) {
        if (unit < n_heads * n_parts) {
            const int64_t   head = unit % n_heads;
            const GroupPart part = { unit / n_heads, n_parts };
            for (int64_t token = 0; token < n_tokens; ++token) {
                if (part.has(k_idxs[token] % plane.ctx.shape.n_cells / kGroupCells)) {
                    store_head(dst->src[STORE_K_CUR], dst->src[STORE_K_IDXS], dst->src[STORE_K], token, head);
                }
            }
            if (sketched) {
                sketch_head(layer, dst->src[STORE_K], static_cast<int>(head), part);
            }
        } else {
            for (int64_t head = 0; head < n_heads; ++head) {
                store_head(dst->src[STORE_V_CUR], dst->src[STORE_V_IDXS], dst->src[STORE_V], unit - n_heads * n_parts, head);
            }
        }
    }
    if (ith == 0 && plane.ctx.may_select()) {
        plane.sketched.store(true, std::memory_order_relaxed);
    }
}

// Behind the store node, because a group's rows of all heads are there then.
void run_write(ggml_tensor *, int ith, int nth, void * userdata) {
    const HostLayer & layer = *static_cast<const HostLayer *>(userdata);
    layer.plane->disk.write(layer.index, ith, nth);
}

}  // namespace

bool HostPlane::do_build_store(Layer & served, const llama_edgekv_store & args) {
    // long ubatches need this node only for their sketches
    if (is_long(args.k, args.k_cur->ne[2]) && !ctx.may_select()) {
        return false;
    }
    if (!storable(args)) {
        served.info.state = EDGEKV_LAYER_GRAPH;
        return false;
    }

    HostLayer & layer = of(served);
    ggml_tensor * sources[N_STORE_SOURCES] = { args.k_cur, args.v_cur, args.k_idxs, args.v_idxs, args.k, args.v };

    // no node uses the value of this one, which exists for its place in the graph
    ggml_tensor * node =
        ggml_custom_4d(args.ctx, GGML_TYPE_F32, 1, 1, 1, 1, sources, N_STORE_SOURCES, run_store, GGML_N_TASKS_MAX, &layer);
    ggml_format_name(node, "edgekv_store-%d", args.il);
    ggml_build_forward_expand(args.gf, node);
    if (disk.keeps(layer.index)) {
        ggml_tensor * write = ggml_custom_4d(args.ctx, GGML_TYPE_F32, 1, 1, 1, 1, &node, 1, run_write, GGML_N_TASKS_MAX, &layer);
        ggml_format_name(write, "edgekv_write-%d", args.il);
        ggml_build_forward_expand(args.gf, write);
    }
    build(layer).k_idxs = args.k_idxs;
    return true;
}

}  // namespace edgekv
