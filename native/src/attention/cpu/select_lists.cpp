// Lists the rows that each token reads in a KV head: the kept rows, or a sample.
//
// One thread lists a head for all tokens of the run. It reads the sights and, if there are sketches, the shares that all threads wrote to
// the workspace. It writes the run's lists (RowLists) and adds to the sums of the layer and head (HostLayer::selected).
#include "attention/cpu/select_parts.h"

#include <algorithm>

namespace edgekv {

// Sequences of one cache share a stream. A beginning that several have in common counts for the first of them.
int RowLister::sequence_of(int token) const {
    if (thread.ctx().shape.n_stream > 1) {
        return thread.stream;
    }
    const uint64_t * words = cells.seq + thread.cell_of(token) * cells.n_seq_words;
    uint32_t         word  = 0;
    while (word + 1 < cells.n_seq_words && words[word] == 0) {
        ++word;
    }
    return words[word] == 0 ? 0 : static_cast<int>(64 * word) + __builtin_ctzll(words[word]);
}

SampleResult RowLister::every(int token, const Sight * sight, int32_t * rows) const {
    SampleResult result = {};
    for (int group = 0; group < thread.plan.n_groups; ++group) {
        for (uint64_t left = sight[group].visible; left != 0; left &= left - 1) {
            rows[result.n_rows++] = group * kGroupCells + __builtin_ctzll(left);
        }
    }
    result.n_visible = sights.n_visible(token);
    result.n_certain = sights.are_few() ? result.n_rows : 0;
    return result;
}

SampleResult RowLister::sample(int head, int token, const Sight * sight, int32_t * rows, float * weights) const {
    const SelectPlan &  plan   = thread.plan;
    const ggml_tensor * sinks  = thread.node->src[SELECT_SINKS];
    const Shares        shares = thread.shares(head, token);

    SampleProblem p = {};
    p.n_groups     = plan.n_groups;
    p.group        = plan.group;
    p.shares       = shares.cells;
    p.tops         = shares.tops;
    p.sums         = shares.sums;
    p.cell_stride  = shares.cell_stride;
    p.group_stride = shares.group_stride;
    p.sinks        = sinks ? static_cast<const float *>(sinks->data) + head * plan.group : nullptr;
    p.sight        = sight;
    p.resolution   = thread.ctx().resolution(*thread.layer.layer, head);
    p.exact_tokens = thread.ctx().params.selection.exact_tokens;
    p.positions    = thread.ctx().pages.cells.positions(thread.stream);
    p.turn         = page_turn(thread.layer.index, head, thread.position(token));
    p.rows         = rows;
    p.weights      = weights;
    p.scratch      = thread.own() + plan.scratch_offset;
    return sample_rows(p, selected_isa());
}

void RowLister::list(int head) const {
    const SelectPlan & plan  = thread.plan;
    const Sight *      first = sights_of_head(thread, sights, head, 0, plan.n_groups);

    for (int token = 0; token < plan.n_tokens; ++token) {
        const size_t    list  = static_cast<size_t>(token) * plan.n_head_kv + head;
        int32_t * const rows  = lists.cells_of(list);
        if (thread.leaves(token)) {
            lists.n_rows_of(list) = 0;
            continue;
        }

        const Sight *      sight  = first + static_cast<size_t>(token) * plan.n_groups;
        const SampleResult result = plan.scans && !sights.are_few() ? sample(head, token, sight, rows, lists.weights_of(list))
                                                                    : every(token, sight, rows);
        if (sights.are_few()) {
            std::fill_n(lists.weights_of(list), result.n_rows, 1.0f);
        }
        lists.n_rows_of(list) = result.n_rows;
        edgekv_selected & sum = thread.layer.selected[static_cast<size_t>(sequence_of(token)) * plan.n_head_kv + head];
        sum.n_tokens  += 1;
        sum.n_visible += result.n_visible;
        sum.n_certain += result.n_certain;
        if (plan.scans) {
            sum.covered   += 1.0 - result.missed / thread.ctx().resolution(*thread.layer.layer, head);
            sum.n_covered += 1;
        }
    }
}

}  // namespace edgekv
