// Estimates a token's shares of attention by the sketches of all keys that it sees.
//
// A thread scans one chunk of groups for all tokens and all query heads of a KV head. It prepares these queries when it comes to another head.
// It reads Q, the sketches, and the keys of groups that some token sees in part; it writes the chunk's shares to the run's workspace.
#include "attention/cpu/select_parts.h"

#include <algorithm>

namespace edgekv {

Shares SelectThread::shares(int head, int token) const {
    const size_t query = static_cast<size_t>(head) * plan.n_queries + token * plan.group;
    return { reinterpret_cast<uint16_t *>(workspace() + plan.shares_offset) + query * plan.cell_stride,
             reinterpret_cast<float *>(workspace() + plan.tops_offset) + query * plan.group_stride,
             reinterpret_cast<float *>(workspace() + plan.sums_offset) + query * plan.group_stride, plan.cell_stride, plan.group_stride };
}

void ShareScan::scan(int head, int chunk) {
    const SelectPlan &  plan   = thread.plan;
    const ggml_tensor * q      = thread.node->src[SELECT_Q];
    const ggml_tensor * k      = thread.node->src[SELECT_K];
    const LayerNodes &  nodes  = thread.layer.nodes();
    const Sketch        sketch = thread.plane().sketches.of(thread.layer.index, thread.stream);
    const SketchKeys    keys   = { cell_type(k), static_cast<const char *>(k->data) + thread.run.stream * k->nb[3], k->nb[2], k->nb[1] };

    const int         first      = chunk * kChunkGroups;
    const int         end        = std::min(first + kChunkGroups, plan.n_groups);
    const Sight *     sight      = sights_of_head(thread, sights, head, first, end);
    const size_t      first_head = static_cast<size_t>(head) * plan.group;
    const SketchQuery query      = { static_cast<const char *>(q->data) + thread.first * q->nb[2] + first_head * q->nb[1], q->nb[2], q->nb[1],
                                     plan.n_tokens, plan.group, nodes.scale, nodes.softcap, sight, static_cast<size_t>(plan.n_groups) };
    if (prepared != head) {
        sketch_query_prepare(sketch, query, thread.own(), selected_isa());
        prepared = head;
    }

    const HeadScan scan = { sketch, keys, query, thread.own(), head };
    if (plan.keeps) {
        scan_kept(scan, first, end, thread.shares(head, 0));
    } else {
        scan_groups(scan, first, end, thread.shares(head, 0));
    }
}

// What a head keeps lies scattered over groups. Each group but the open ones has a sketch of all its keys, whatever the head has dropped of them.
void ShareScan::scan_kept(const HeadScan & scan, int first, int end, const Shares & out) const {
    const StaleGroups & stale = thread.ctx().pages.stale;
    int begin = first;
    for (int group = first; group <= end; ++group) {
        if (group < end && !stale.is_open(thread.stream, group)) {
            continue;
        }
        if (group > begin) {
            sketch_scan(scan.sketch, scan.query, scan.prepared, scan.head, begin, group - begin, out, selected_isa());
        }
        if (group < end) {
            sketch_scan_keys(scan.keys, scan.sketch.head_dim, scan.query, scan.head, group, out, selected_isa());
        }
        begin = group + 1;
    }
}

void scan_groups(const HeadScan & scan, int first, int end, const Shares & out) {
    const SketchQuery & q = scan.query;
    const auto any = [&](int group, auto is) {
        for (int token = 0; token < q.n_tokens; ++token) {
            if (is(q.sight[token * q.sight_stride + group])) {
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
        const size_t query = static_cast<size_t>(token) * q.group;
        SketchQuery  one   = q;
        one.q       += token * q.stride_token;
        one.sight   += token * q.sight_stride;
        one.n_tokens = 1;
        sketch_scan_keys(scan.keys, scan.sketch.head_dim, one, scan.head, group,
                         { out.cells + query * out.cell_stride, out.tops + query * out.group_stride, out.sums + query * out.group_stride,
                           out.cell_stride, out.group_stride }, selected_isa());
    };

    int begin = first;
    for (int group = first; group < end; ++group) {
        if (!any(group, sees_in_part)) {
            continue;
        }
        const bool has_sketch = any(group, sees_whole);
        by_sketch(begin, has_sketch ? group + 1 : group);
        for (int token = 0; token < q.n_tokens; ++token) {
            const Sight & sight = q.sight[token * q.sight_stride + group];
            if (sees_in_part(sight) || (!has_sketch && !sees_whole(sight))) {
                by_keys(token, group);
            }
        }
        begin = group + 1;
    }
    by_sketch(begin, end);
}

}  // namespace edgekv
