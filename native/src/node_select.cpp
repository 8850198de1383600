// The node between storing and attending: scans the sketches and fills each query token's and KV head's list of pages.
#include "nodes_internal.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace edgekv {

namespace {

enum SelectSource { SELECT_Q, SELECT_K, SELECT_MASK, SELECT_K_IDXS, SELECT_SINKS, N_SELECT_SOURCES };

// The sizes of one stream's selection and its workspace, which all layers use in turn: arrivals [KV head], as many as any layer has, so
// that none lies where another layer keeps numbers, zero between runs; estimates [token][query head][stride]; then for each thread a
// prepared query, the scratch of select_pages() and what a token sees.
struct SelectPlan {
    SelectPlan(const Layer & layer, const ggml_tensor * q, const ggml_tensor * k, int n_threads) {
        const edgekv_context & ctx = *layer.owner;

        n_tokens  = (int) (q->ne[2]/k->ne[3]);
        n_head_kv = (int) k->ne[1];
        group     = (int) q->ne[1]/n_head_kv;
        n_cells   = (int) k->ne[2];
        per_page  = ctx.params.page_tokens/kSketchStripCells;
        n_pages   = (n_cells + ctx.params.page_tokens - 1)/ctx.params.page_tokens;
        n_blocks  = (n_pages*per_page + kSketchBlockStrips - 1)/kSketchBlockStrips;
        kind      = ctx.params.mode == EDGEKV_MODE_EVICT ? SketchKind::none : (SketchKind) ctx.params.selection.sketch;

        stride           = (size_t) n_blocks*kSketchBlockStrips;
        estimates_offset = align64((size_t) ctx.n_heads*sizeof(std::atomic<int>));
        threads_offset   = estimates_offset + align64((size_t) n_tokens*n_head_kv*group*stride*sizeof(float));
        scratch_offset   = kind == SketchKind::none ? 0 : align64(sketch_query_bytes(kind, layer.info.head_dim, group));
        standing_offset  = scratch_offset + align64(select_scratch_bytes(n_pages, per_page, group));
        thread_bytes     = standing_offset + align64((size_t) standing_stride(ctx)*sizeof(float));
        bytes            = threads_offset + n_threads*thread_bytes;
    }

    // pages, and behind them the number of visible ones
    static int standing_stride(const edgekv_context & ctx) { return ctx.pages_per_stream + 16; }

    int n_tokens, n_head_kv, group, n_cells, n_pages, per_page, n_blocks;
    SketchKind kind;
    size_t stride, estimates_offset, threads_offset, scratch_offset, standing_offset, thread_bytes, bytes;
};

// -inf for pages that the token does not see, +inf for sinks and recent ones
void find_standing(const edgekv_context & ctx, const SelectPlan & plan, const ggml_tensor * mask, const char * row, int stream,
                   int32_t position, float * standing) {
    const auto &    options   = ctx.params.selection;
    const int32_t * newest    = ctx.hierarchy.newest(stream);
    const int32_t * oldest    = ctx.hierarchy.oldest(stream);
    int             n_visible = 0;

    for (int page = 0; page < plan.n_pages; ++page) {
        const int first = page*ctx.params.page_tokens;
        const int end   = std::min(first + ctx.params.page_tokens, plan.n_cells);
        if (!any_visible(mask, row, first, end)) {
            standing[page] = -INFINITY;
            continue;
        }
        // the page that is being written has no sketch to trust, and is recent too
        const bool always = oldest[page] < options.sink_tokens || newest[page] > position - std::max(options.recent_tokens, 1);
        standing[page] = always ? INFINITY : 0.0f;
        n_visible += 1;
    }
    standing[ctx.pages_per_stream] = (float) n_visible;
}

int budget_pages(const edgekv_context & ctx, int n_visible) {
    const auto & options = ctx.params.selection;
    const int    wanted  = options.tokens > 0 ? (options.tokens + ctx.params.page_tokens - 1)/ctx.params.page_tokens
                                              : (int) std::lround(options.share*n_visible);

    return std::min(n_visible, std::max(wanted, options.min_tokens/ctx.params.page_tokens));
}

struct SelectRun {
    Layer & layer;
    edgekv_context & ctx;
    const ggml_tensor * node;
    const SelectPlan & plan;
    const int64_t s;    // stream in the graph
    const int stream;   // in the cache
    const int ith;

    char * workspace() const { return ctx.select_workspaces[s].data(); }
    std::atomic<int> & arrivals(int head) const { return reinterpret_cast<std::atomic<int> *>(workspace())[head]; }
    float * estimates(int list) const {
        return reinterpret_cast<float *>(workspace() + plan.estimates_offset) + (size_t) list*plan.group*plan.stride;
    }
    char * own() const { return workspace() + plan.threads_offset + ith*plan.thread_bytes; }

    // a single sequence's token may use what an earlier one found, unless more than the tail changed
    bool may_keep() const { return ctx.params.selection.reselect > 1 && plan.n_tokens == 1 && node->src[SELECT_K]->ne[3] == 1; }

    bool scans(int head) const {
        const uint64_t turn = (uint64_t) (layer.info.row*ctx.n_heads + head);

        return plan.kind != SketchKind::none &&
               (!may_keep() || ctx.scans_all || (ctx.n_ubatch + turn)%(uint64_t) ctx.params.selection.reselect == 0);
    }

    SketchQuery query(int token, int head) const {
        const ggml_tensor * q = node->src[SELECT_Q];

        return { static_cast<const char *>(q->data) + (s*plan.n_tokens + token)*q->nb[2] + (size_t) head*plan.group*q->nb[1],
                 q->nb[1], plan.group, layer.scale, layer.softcap };
    }

    void scan(int token, int head, int first, int last) const {
        if (first >= last) {
            return;
        }
        const Sketch      sketch = ctx.hierarchy.sketch(layer.info.row, stream);
        const SketchQuery q      = query(token, head);
        float * const     out    = estimates(token*plan.n_head_kv + head) + (size_t) first*kSketchBlockStrips;
        sketch_query_prepare(sketch, q, own(), selected_isa());
        sketch_scan(sketch, q, own(), head, first, last - first, out, plan.stride, selected_isa());
    }

    const float * standing(int token) const {
        const int    stride = SelectPlan::standing_stride(ctx);
        float * const all   = reinterpret_cast<float *>(ctx.standings[s].data()) + (size_t) token*stride;
        if (!layer.leads) {
            return all;
        }
        // the layer that leads has no barrier before its readers: each thread finds out for itself, and the first for those to come
        float * const mine = reinterpret_cast<float *>(own() + plan.standing_offset);
        const ggml_tensor * mask = node->src[SELECT_MASK];
        const char *  row  = static_cast<const char *>(mask->data) + s*mask->nb[3] + token*mask->nb[1];
        const int64_t cell = static_cast<const int64_t *>(node->src[SELECT_K_IDXS]->data)[s*plan.n_tokens + token] - (int64_t) stream*ctx.n_cells;
        find_standing(ctx, plan, mask, row, stream, ctx.hierarchy.positions(stream)[cell], mine);
        if (ith == 0) {
            std::memcpy(all, mine, stride*sizeof(float));
        }

        return mine;
    }

    // mode evict: what the token sees, less what the head dropped
    void keep(int token, int head, const float * standing) const {
        const int       list    = token*plan.n_head_kv + head;
        const auto &    lists   = layer.lists[s];
        const uint8_t * dropped = ctx.hierarchy.dropped(layer.info.row, stream, head);
        int32_t *       pages   = reinterpret_cast<int32_t *>(lists.pages.data()) + (size_t) list*ctx.pages_per_stream;
        int             n       = 0;

        for (int page = 0; page < plan.n_pages; ++page) {
            if (standing[page] >= 0.0f && !dropped[page]) {
                pages[n++] = page;
            }
        }
        reinterpret_cast<int32_t *>(lists.n_pages.data())[list] = n;

        edgekv_selected & sum = layer.selected[head];
        sum.n_tokens  += 1;
        sum.n_visible += standing[ctx.pages_per_stream];
    }

    void select(int token, int head, const float * standing, bool scanned) const {
        const auto & options = ctx.params.selection;
        const int    list    = token*plan.n_head_kv + head;
        const auto & lists   = layer.lists[s];
        auto &       tally   = ctx.tallies[ith];
        const int    row     = layer.info.row;
        const int    budget  = budget_pages(ctx, (int) standing[ctx.pages_per_stream]);
        const auto * sinks   = node->src[SELECT_SINKS];
        const bool   keeps   = may_keep();

        SelectProblem p = {};
        p.n_pages   = plan.n_pages;
        p.per_page  = plan.per_page;
        p.group     = plan.group;
        p.estimates = scanned ? estimates(list) : nullptr;
        p.stride    = plan.stride;
        p.known     = !scanned && plan.kind != SketchKind::none ? ctx.hierarchy.known(row, stream, head) : nullptr;
        p.sinks     = sinks ? static_cast<const float *>(sinks->data) + head*plan.group : nullptr;
        p.standing  = standing;
        p.priority  = ctx.hierarchy.priority(row, stream, head);
        p.pinned    = ctx.hierarchy.pinned(row, stream, head);
        p.n_budget  = budget;
        p.threshold = options.pooled ? ctx.hierarchy.threshold() : -1.0f;
        p.coverage  = options.coverage;
        p.floor     = options.floor;
        p.blend     = options.blend;
        p.pages     = reinterpret_cast<int32_t *>(lists.pages.data()) + (size_t) list*ctx.pages_per_stream;
        p.covered   = reinterpret_cast<float *>(lists.covered.data()) + (size_t) list*plan.group;
        p.mass      = scanned && (keeps || options.keep_estimates) ? ctx.hierarchy.known(row, stream, head) : nullptr;
        p.buckets   = ctx.count_values ? tally.buckets.data() : nullptr;
        p.scratch   = own() + plan.scratch_offset;
        if (options.feed && ctx.params.observe) {
            p.mass_max = ctx.mass_max(layer, stream) + (size_t) head*ctx.n_pages;
            p.mass_sum = ctx.mass_sum(layer, stream) + (size_t) head*ctx.n_pages;
        }

        const SelectResult result = select_pages(p, selected_isa());
        reinterpret_cast<int32_t *>(lists.n_pages.data())[list] = result.n_taken;

        tally.n_budget += budget;
        tally.n_pinned += result.n_pinned;
        if (layer.leads && head == 0) {  // layers that attend everything are paid for by the others
            for (const auto & other : ctx.layers) {
                if (other->info.row >= 0 && other->info.row < options.n_dense) {
                    tally.n_budget -= (double) other->info.n_head_kv*(result.n_visible - budget);
                }
            }
        }

        edgekv_selected & sum = layer.selected[head];
        sum.n_tokens    += 1;
        sum.n_visible   += result.n_visible;
        sum.coverage    += result.coverage;
        sum.n_fallbacks += result.fell_back ? 1 : 0;
    }

    // This thread's share of the units, which are blocks to scan, head by head. Who completes a head selects for all of its tokens:
    // counters and mass of a head are written by one thread.
    void run(int nth) const {
        const auto units_of = [&](int head) { return plan.n_tokens*(scans(head) ? plan.n_blocks : 1); };

        int n_units = 0;
        for (int head = 0; head < plan.n_head_kv; ++head) {
            n_units += units_of(head);
        }
        const int begin = (int) ((int64_t) n_units*ith/nth);
        const int end   = (int) ((int64_t) n_units*(ith + 1)/nth);

        for (int head = 0, u = 0; head < plan.n_head_kv && u < end; ++head) {
            const bool scanned = scans(head);
            const int  n       = units_of(head);
            const int  first   = std::max(begin - u, 0);
            const int  last    = std::min(end - u, n);
            u += n;
            if (first >= last) {
                continue;
            }
            for (int token = 0; scanned && token < plan.n_tokens; ++token) {
                scan(token, head, std::max(first - token*plan.n_blocks, 0), std::min(last - token*plan.n_blocks, plan.n_blocks));
            }
            if (arrivals(head).fetch_add(last - first, std::memory_order_acq_rel) + last - first < n) {
                continue;
            }
            arrivals(head).store(0, std::memory_order_relaxed);
            for (int token = 0; token < plan.n_tokens; ++token) {
                if (ctx.params.mode == EDGEKV_MODE_EVICT) {
                    keep(token, head, standing(token));
                } else {
                    select(token, head, standing(token), scanned);
                }
            }
        }
        if (layer.leads && ith == 0) {  // for the layers to come, whoever selected here
            for (int t = 0; t < plan.n_tokens; ++t) {
                standing(t);
            }
        }
    }
};

void run_select(ggml_tensor * dst, int ith, int nth, void * userdata) {
    Layer &             layer = *static_cast<Layer *>(userdata);
    const ggml_tensor * k     = dst->src[SELECT_K];
    const SelectPlan    plan(layer, dst->src[SELECT_Q], k, nth);

    for (int64_t s = 0; s < k->ne[3]; ++s) {
        SelectRun{ layer, *layer.owner, dst, plan, s, (int) (s + k->view_offs/k->nb[3]), ith }.run(nth);
    }
}

}  // namespace

ggml_tensor * build_select(edgekv_context & ctx, Layer & layer, const llama_edgekv_attend & args) {
    const SelectPlan plan(layer, args.q, args.k, ctx.n_threads);
    const size_t     n_lists = (size_t) plan.n_tokens*plan.n_head_kv;

    for (int64_t s = 0; s < args.k->ne[3]; ++s) {
        auto & lists = layer.lists[s];
        lists.n_tokens = plan.n_tokens;
        if (!ctx.select_workspaces[s].reserve(plan.bytes) ||
            !ctx.standings[s].reserve((size_t) plan.n_tokens*SelectPlan::standing_stride(ctx)*sizeof(float)) ||
            !lists.pages.reserve(n_lists*ctx.pages_per_stream*sizeof(int32_t)) ||
            !lists.n_pages.reserve(n_lists*sizeof(int32_t)) ||
            !lists.covered.reserve(n_lists*plan.group*sizeof(float))) {
            return nullptr;
        }
    }

    layer.leads      = !ctx.leader_built;
    ctx.leader_built = true;

    ggml_tensor * sources[N_SELECT_SOURCES] = { args.q, args.k, args.mask, const_cast<ggml_tensor *>(layer.k_idxs), args.sinks };
    ggml_tensor * node =
        ggml_custom_4d(args.ctx, GGML_TYPE_F32, 1, 1, 1, 1, sources, N_SELECT_SOURCES, run_select, GGML_N_TASKS_MAX, &layer);
    ggml_format_name(node, "edgekv_select-%d", args.il);

    return node;
}

}  // namespace edgekv
