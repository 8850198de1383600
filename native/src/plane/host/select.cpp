// The node between storing and attending: which rows each query token reads in each KV head.
#include "plane/host/nodes.h"
#include "plane/host/page_choice.h"
#include "kernels/select/sample.h"
#include "pages/certain.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace edgekv {

namespace {

enum SelectSource { SELECT_Q, SELECT_K, SELECT_MASK, SELECT_K_IDXS, SELECT_SINKS, N_SELECT_SOURCES };

constexpr int kChunkGroups = 16;  // that a thread scans at once: 1,024 cells

// The sizes of one run's selection and its workspace, which all layers use in turn: counters (threads that are done, the next chunk, and
// by KV head chunks that are done), as many as any layer needs, so that none lies where another layer keeps numbers, zero between runs;
// shares [KV head][token][head of the group]; then for each thread the prepared queries of a KV head, what sampling needs, and what the
// tokens see.
struct SelectPlan {
    SelectPlan(const HostLayer & layer, const ggml_tensor * k, const TokenRun & run, int n_threads) :
        SelectPlan(layer.layer->info, run.n, static_cast<int>(k->ne[2]), layer.plane->ctx.sketches(), layer.plane->ctx.shape.n_heads,
                   n_threads) {}

    // n_heads: the most KV heads of any layer
    SelectPlan(const edgekv_layer & info, int n_tokens, int n_cells, bool scans, int n_heads, int n_threads) :
        n_tokens(n_tokens), n_head_kv(info.n_head_kv), group(info.n_head/info.n_head_kv), n_cells(n_cells),
        n_groups((n_cells + kGroupCells - 1)/kGroupCells), n_rows(n_tokens*group), scans(scans) {
        n_chunks  = scans ? (n_groups + kChunkGroups - 1)/kChunkGroups : 1;

        cell_stride     = (size_t) n_groups*kGroupCells;
        group_stride    = (size_t) (n_groups + 15)/16*16;
        shares_offset   = align64((2 + n_heads)*sizeof(std::atomic<int>));
        tops_offset     = shares_offset + (scans ? align64((size_t) n_head_kv*n_rows*cell_stride*sizeof(uint16_t)) : 0);
        sums_offset     = tops_offset + (scans ? align64((size_t) n_head_kv*n_rows*group_stride*sizeof(float)) : 0);
        threads_offset  = sums_offset + (sums_offset - tops_offset);
        scratch_offset  = scans ? align64(sketch_query_bytes(info.head_dim, n_rows)) : 0;
        sight_offset    = scratch_offset + align64(sample_scratch_bytes(n_groups, group));
        thread_bytes    = sight_offset + align64((size_t) n_tokens*n_groups*sizeof(Sight));
        bytes           = threads_offset + n_threads*thread_bytes;
    }

    int n_tokens, n_head_kv, group, n_cells, n_groups, n_rows, n_chunks;
    bool scans;
    size_t cell_stride, group_stride, shares_offset, tops_offset, sums_offset, threads_offset, scratch_offset, sight_offset, thread_bytes, bytes;
};

// What a token at `position` sees. It reads the first tokens, the newest ones, what is pinned and what has no sketch for certain.
void find_sight(const State & ctx, const SelectPlan & plan, const ggml_tensor * mask, const char * row, int stream, int32_t position,
                Sight * sight) {
    const auto &    options   = ctx.params.selection;
    const int32_t * newest    = ctx.pages.cells.newest(stream);
    const int32_t * oldest    = ctx.pages.cells.oldest(stream);
    const int32_t * positions = ctx.pages.cells.positions(stream);
    const auto      certain   = certain_positions(options.sink_tokens, options.recent_tokens, ctx.shape.page_tokens, position);

    for (int group = 0; group < plan.n_groups; ++group) {
        const int first = group*kGroupCells;
        const int end   = std::min(first + kGroupCells, plan.n_cells);

        sight[group] = { visible_cells(mask_type(mask), row, first, end), ctx.pages.pins.of(stream, group) };
        if (sight[group].visible == 0) {
            continue;
        }
        for (int part = first; part < end; part += 16) {  // of which pages have a multiple
            const int page = part/ctx.shape.page_tokens;
            for (int c = part; certain.may_hold(oldest[page], newest[page]) && c < std::min(part + 16, end); ++c) {
                sight[group].certain |= (uint64_t) certain.holds(positions[c]) << (c - first);
            }
        }
        if (plan.scans && ctx.pages.stale.is_open(stream, group)) {
            sight[group].certain = ~uint64_t{0};
        }
        sight[group].certain &= sight[group].visible;
    }
}

// Mode evict: the visible cells of the pages that a head has not dropped, ascending; returns their number.
int list_kept(const uint8_t * dropped, const Sight * sight, int n_cells, int page_tokens, int32_t * cells, int & n_visible) {
    int n = 0;

    n_visible = 0;
    for (int group = 0; group < (n_cells + kGroupCells - 1)/kGroupCells; ++group) {
        for (uint64_t left = sight[group].visible; left != 0; left &= left - 1) {
            const int cell = group*kGroupCells + __builtin_ctzll(left);
            n_visible += 1;
            if (!dropped[cell/page_tokens]) {
                cells[n++] = cell;
            }
        }
    }

    return n;
}

struct SelectRun {
    HostLayer & layer;
    HostPlane & plane;
    const State & ctx;
    const ggml_tensor * node;
    const SelectPlan & plan;
    const TokenRun & of;
    const int64_t first;  // its first token in the graph
    const int stream;     // in the cache
    const int ith;
    const Sight * sight = nullptr;  // [n_tokens][n_groups]
    int prepared = -1;              // the KV head whose queries are in own()

    bool leaves(int token) const { return of.left >> token & 1; }
    int64_t cell_of(int token) const {
        return static_cast<const int64_t *>(node->src[SELECT_K_IDXS]->data)[first + token] - (int64_t) stream*ctx.shape.n_cells;
    }
    char * workspace() const { return plane.select_workspaces[of.workspace].data(); }
    std::atomic<int> & counter(int i) const { return reinterpret_cast<std::atomic<int> *>(workspace())[i]; }
    char * own() const { return workspace() + plan.threads_offset + ith*plan.thread_bytes; }

    // of a token's heads
    Shares shares(int head, int token) const {
        const size_t row = (size_t) head*plan.n_rows + token*plan.group;

        return { reinterpret_cast<uint16_t *>(workspace() + plan.shares_offset) + row*plan.cell_stride,
                 reinterpret_cast<float *>(workspace() + plan.tops_offset) + row*plan.group_stride,
                 reinterpret_cast<float *>(workspace() + plan.sums_offset) + row*plan.group_stride, plan.cell_stride, plan.group_stride };
    }

    SketchQuery query(int head) const {
        const ggml_tensor * q = node->src[SELECT_Q];

        return { static_cast<const char *>(q->data) + first*q->nb[2] + (size_t) head*plan.group*q->nb[1], q->nb[2], q->nb[1],
                 plan.n_tokens, plan.group, layer.scale, layer.softcap, sight, (size_t) plan.n_groups };
    }

    int32_t position(int token) const { return ctx.pages.cells.positions(stream)[cell_of(token)]; }

    void look() {
        Sight * const all = reinterpret_cast<Sight *>(plane.sights[of.workspace].data());
        sight = all;
        if (!layer.leads) {
            return;
        }
        // the layer that leads has no barrier before its readers: each thread finds out for itself, and the first for those to come
        Sight * const mine = reinterpret_cast<Sight *>(own() + plan.sight_offset);
        const ggml_tensor * mask = node->src[SELECT_MASK];
        for (int token = 0; token < plan.n_tokens; ++token) {
            Sight * const sees = mine + (size_t) token*plan.n_groups;
            if (leaves(token)) {
                std::fill_n(sees, plan.n_groups, Sight{});
                continue;
            }
            const char * row = static_cast<const char *>(mask->data) + of.stream*mask->nb[3] + (of.first + token)*mask->nb[1];
            find_sight(ctx, plan, mask, row, stream, position(token), sees);
        }
        if (ith == 0) {
            std::memcpy(all, mine, (size_t) plan.n_tokens*plan.n_groups*sizeof(Sight));
        }
        sight = mine;
    }

    void scan(int head, int chunk) {
        const Sketch      sketch = plane.sketches.of(layer.row, stream);
        const SketchQuery q      = query(head);
        const Shares      out    = shares(head, 0);
        if (prepared != head) {
            sketch_query_prepare(sketch, q, own(), selected_isa());
            prepared = head;
        }

        const ggml_tensor * k     = node->src[SELECT_K];
        const SketchKeys    keys  = { cell_type(k),
                                      static_cast<const char *>(k->data) + of.stream*k->nb[3], k->nb[2], k->nb[1] };
        const int           first = chunk*kChunkGroups;
        scan_groups({ sketch, keys, q, own(), head }, first, std::min(first + kChunkGroups, plan.n_groups), out);
    }

    void select(int token, int head) const {
        const auto &       options = ctx.params.selection;
        const RowLists &   lists   = plane.lists_of(layer, of);
        const size_t       list    = (size_t) token*plan.n_head_kv + head;
        int32_t &          n_rows  = reinterpret_cast<int32_t *>(lists.n_rows.data())[list];
        if (leaves(token)) {
            n_rows = 0;
            return;
        }
        const Sight *      seen    = sight + (size_t) token*plan.n_groups;
        const ggml_tensor * sinks  = node->src[SELECT_SINKS];
        int32_t * const    cells   = reinterpret_cast<int32_t *>(lists.cells.data()) + list*lists.stride;
        SampleResult       result  = {};

        if (ctx.params.mode == EDGEKV_MODE_EVICT) {
            result.n_rows = list_kept(plane.drops.of(layer.row, stream, head), seen, plan.n_cells, ctx.shape.page_tokens, cells, result.n_visible);
        } else if (plan.scans) {
            const Shares from = shares(head, token);
            SampleProblem p = {};
            p.n_groups     = plan.n_groups;
            p.group        = plan.group;
            p.shares       = from.cells;
            p.tops         = from.tops;
            p.sums         = from.sums;
            p.cell_stride  = from.cell_stride;
            p.group_stride = from.group_stride;
            p.sinks        = sinks ? static_cast<const float *>(sinks->data) + head*plan.group : nullptr;
            p.sight        = seen;
            p.resolution   = options.resolution;
            p.offset       = walk_offset(layer.row, head, position(token));
            p.rows         = cells;
            p.weights      = reinterpret_cast<float *>(lists.weights.data()) + list*lists.stride;
            p.scratch      = own() + plan.scratch_offset;
            result = sample_rows(p, selected_isa());
        } else {
            const PageChoice choice = { plan.n_cells, ctx.shape.page_tokens, seen, plane.priority(layer.row, stream, head), options.tokens,
                                        options.share };
            const ChoiceResult chosen = choose_pages(choice, cells, plane.candidates[ith]);
            result = { chosen.n_rows, chosen.n_certain, chosen.n_visible };
        }
        n_rows = result.n_rows;

        edgekv_selected & sum = layer.selected[(size_t) stream*plan.n_head_kv + head];
        sum.n_tokens  += 1;
        sum.n_visible += result.n_visible;
        sum.n_certain += result.n_certain;
        if (plan.scans) {
            sum.covered   += 1.0 - result.missed/options.resolution;
            sum.n_covered += 1;
        }
    }

    // the cells of its tokens: what they read from here on is a sample
    void label() const {
        llama_edgekv_cells cells = {};
        llama_edgekv_get_cells(ctx.lctx, (uint32_t) stream, &cells);
        for (int token = 0; token < plan.n_tokens; ++token) {
            if (!leaves(token)) {
                cells.labels[cell_of(token)] |= LLAMA_EDGEKV_SAMPLED;
            }
        }
    }

    // Threads claim chunks as they come free, head by head. The thread that completes a head selects for all of its tokens, so that one
    // thread writes the head's sums.
    void run(int nth) {
        look();
        if (layer.leads && ith == 0 && ctx.params.mode == EDGEKV_MODE_SPARSE) {
            label();
        }
        const int n = plan.n_head_kv*plan.n_chunks;
        for (int i = counter(1).fetch_add(1, std::memory_order_relaxed); i < n; i = counter(1).fetch_add(1, std::memory_order_relaxed)) {
            const int head = i/plan.n_chunks;
            if (plan.scans) {
                scan(head, i%plan.n_chunks);
            }
            if (counter(2 + head).fetch_add(1, std::memory_order_acq_rel) + 1 < plan.n_chunks) {
                continue;
            }
            counter(2 + head).store(0, std::memory_order_relaxed);
            for (int token = 0; token < plan.n_tokens; ++token) {
                select(token, head);
            }
        }
        if (counter(0).fetch_add(1, std::memory_order_acq_rel) + 1 == nth) {
            counter(0).store(0, std::memory_order_relaxed);
            counter(1).store(0, std::memory_order_relaxed);
        }
    }
};

void run_select(ggml_tensor * dst, int ith, int nth, void * userdata) {
    HostLayer &         layer = *static_cast<HostLayer *>(userdata);
    const ggml_tensor * q     = dst->src[SELECT_Q];
    const ggml_tensor * k     = dst->src[SELECT_K];

    layer.plane->ctx.arrivals.wait(layer.layer->il);
    for (const TokenRun & run : layer.reading.selected) {
        const SelectPlan plan(layer, k, run, nth);
        const int64_t    first = run.stream*(q->ne[2]/k->ne[3]) + run.first;
        SelectRun{ layer, *layer.plane, layer.plane->ctx, dst, plan, run, first, run.stream + first_stream(k), ith }.run(nth);
    }
}

}  // namespace

uint64_t visible_cells(MaskType type, const char * row, int first, int end) {
    uint64_t cells = 0;
    if (type == MaskType::f16) {
        const uint16_t * x = reinterpret_cast<const uint16_t *>(row) + first;
        for (int c = 0; c < end - first; ++c) {
            cells |= (uint64_t) (x[c] != 0xfc00) << c;
        }
    } else {
        const float * x = reinterpret_cast<const float *>(row) + first;
        for (int c = 0; c < end - first; ++c) {
            cells |= (uint64_t) (x[c] != -INFINITY) << c;
        }
    }

    return cells;
}

void scan_groups(const HeadScan & scan, int first, int end, const Shares & out) {
    const SketchQuery & q = scan.query;
    const auto any = [&](int group, auto is) {
        for (int token = 0; token < q.n_tokens; ++token) {
            if (is(q.sight[token*q.sight_stride + group])) {
                return true;
            }
        }
        return false;
    };
    const auto by_sketch = [&](int from, int to) {
        if (to > from) {
            sketch_scan(scan.sketch, q, scan.prepared, scan.head, from, to - from, out, selected_isa());
        }
    };
    const auto by_keys = [&](int token, int group) {
        const size_t row = (size_t) token*q.group;
        SketchQuery  one = q;
        one.q       += token*q.stride_token;
        one.sight   += token*q.sight_stride;
        one.n_tokens = 1;
        sketch_scan_keys(scan.keys, scan.sketch.head_dim, one, scan.head, group,
                         { out.cells + row*out.cell_stride, out.tops + row*out.group_stride, out.sums + row*out.group_stride, out.cell_stride,
                           out.group_stride }, selected_isa());
    };

    int begin = first;
    for (int group = first; group < end; ++group) {
        if (!any(group, sees_in_part)) {
            continue;
        }
        const bool has_sketch = any(group, sees_whole);
        by_sketch(begin, has_sketch ? group + 1 : group);
        for (int token = 0; token < q.n_tokens; ++token) {
            const Sight & sight = q.sight[token*q.sight_stride + group];
            if (sees_in_part(sight) || (!has_sketch && !sees_whole(sight))) {
                by_keys(token, group);
            }
        }
        begin = group + 1;
    }
    by_sketch(begin, end);
}

SelectBytes select_bytes(const AttendProblem & problem, bool scans, int n_threads) {
    edgekv_layer info = {};
    info.n_head    = problem.n_head;
    info.n_head_kv = problem.n_head_kv;
    info.head_dim  = problem.head_dim;
    const SelectPlan plan(info, problem.n_tokens, problem.n_cells, scans, problem.n_head_kv, n_threads);
    const size_t     n_lists = static_cast<size_t>(plan.n_tokens)*plan.n_head_kv;

    return { plan.bytes, n_lists*(plan.cell_stride*(sizeof(int32_t) + sizeof(float)) + sizeof(int32_t)), plan.cell_stride };
}

ggml_tensor * build_select(HostLayer & layer, const llama_edgekv_attend & args) {
    HostPlane & plane = *layer.plane;

    for (const TokenRun & run : layer.reading.selected) {
        const SelectPlan plan(layer, args.k, run, plane.n_threads);
        const size_t     n_lists = (size_t) plan.n_tokens*plan.n_head_kv;
        RowLists &       lists   = plane.lists_of(layer, run);
        lists.n_tokens = plan.n_tokens;
        lists.stride   = plan.cell_stride;
        if (!plane.select_workspaces[run.workspace].reserve(plan.bytes) ||
            !plane.sights[run.workspace].reserve((size_t) plan.n_tokens*plan.n_groups*sizeof(Sight)) ||
            !lists.cells.reserve(n_lists*lists.stride*sizeof(int32_t)) ||
            !lists.weights.reserve(n_lists*lists.stride*sizeof(float)) ||
            !lists.n_rows.reserve(n_lists*sizeof(int32_t))) {
            return nullptr;
        }
    }
    plane.candidates.resize(plane.n_threads);
    for (auto & candidates : plane.candidates) {
        candidates.reserve(plane.ctx.shape.pages_per_stream);  // no node asks for memory
    }

    layer.leads      = !plane.leader_built;
    plane.leader_built = true;

    ggml_tensor * sources[N_SELECT_SOURCES] = { args.q, args.k, args.mask, const_cast<ggml_tensor *>(layer.k_idxs), args.sinks };
    ggml_tensor * node =
        ggml_custom_4d(args.ctx, GGML_TYPE_F32, 1, 1, 1, 1, sources, N_SELECT_SOURCES, run_select, GGML_N_TASKS_MAX, &layer);
    ggml_format_name(node, "edgekv_select-%d", args.il);

    return node;
}

}  // namespace edgekv
