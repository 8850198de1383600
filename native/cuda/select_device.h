// Selection on the device: select_pages() of select.h for all streams, query tokens and KV heads of a layer at once, without a
// word from the host. What differs:
//   - Masses are summed in another order and expf() rounds in its own way (at most 2 ulp). With u = 2^-24 a mass is off by up to
//       (21 + group + d + ln n_strips + n_strips / 512) * u
//     of itself, d = what its estimate lies below the query head's maximum (the exponent's own rounding, and that of the sum: its
//     terms lie ln n_strips below the maximum on average, or less). The pages taken are the CPU's unless a value lies so close to
//     the threshold; values that are exact (no estimates), and ties, are decided as there.
//   - A head scans or uses `known` by the turn that StepState and `reselect` give it.
// The same inputs give the same bytes in every run: floats are never added by atomics.
#pragma once

#include "gpu.h"
#include "select.h"
#include "step_state.h"

namespace edgekv::gpu {

// What heads of a layer came to, summed over steps; the four fields of edgekv_selected that selection counts.
struct SelectTotals {
    double n_steps, n_visible, coverage, n_fallbacks;
};

// What steers the pooled budget: of all heads, layers and tokens of a step, added to where StepState.count_values is set.
struct ValueCounts {
    uint32_t buckets[kValueBuckets];
    double n_budget, n_pinned;
};

// All pointers but none of the numbers are device memory. List l = (stream * n_tokens + token) * n_head_kv + head, with `stream`
// counted in the graph. Arrays of pages begin at the row's head 0 and the cache's page 0: page p of stream s (of the cache) and
// head h stands at h * head_stride + s * pages_per_stream + p.
struct SelectBatch {
    int n_streams, first_stream;
    int n_tokens;  // of one stream
    int n_head_kv, group;
    int n_pages;   // in view of one stream
    int per_page;  // strips of a page
    int page_tokens, pages_per_stream;
    size_t head_stride;

    const float * estimates;  // [list][group][estimate_stride] by strip; null: the sketch kind is none, `priority` alone counts
    size_t estimate_stride;
    float * known;  // by page: mass of the last scan; where heads take turns, a scan writes it and the others read it
    const float * sinks;     // [n_head_kv * group], or null
    const float * standing;  // [stream * n_tokens + token][standing_stride], as launch_standing() leaves it
    size_t standing_stride;
    const float * priority;  // by page, or null: zero
    const uint8_t * pinned;  // by page, or null

    // Who scans: see scans_now(). Heads take turns where a step has one token and one stream; otherwise reselect is taken for 1.
    int reselect;
    uint32_t first_turn;  // of head 0

    // the page budget, from what a token sees: edgekv_selection's own
    float share;
    int tokens, min_tokens;
    bool pooled;     // take from StepState.threshold on; otherwise each head its budget
    float coverage, floor, blend;
    int dense_heads;  // of the layers that attend everything, at the layer that leads; 0 at all others

    int32_t * pages;    // out [list][list_stride], ascending
    size_t list_stride;
    int32_t * n_pages_taken;  // out [list]
    float * covered;          // out [list][group]
    float * mass_max;         // by page: the estimates of pages not taken are added; both or none
    float * mass_sum;
    SelectTotals * totals;    // [n_head_kv] added to; or null
    ValueCounts * counts;     // added to; or null

    char * scratch;  // select_device_scratch_bytes(), 16-byte aligned; free again for the next launch on the stream
};

// `n_lists` = n_streams * n_tokens * n_head_kv
size_t select_device_scratch_bytes(int n_lists, int n_pages, int group);
void launch_select(const SelectBatch & batch, const StepState * state, Stream stream);

// The lists of everything that a token sees, for layers that attend it: pages and n_pages_taken of all lists, from `standing`.
struct VisibleBatch {
    int n_streams, n_tokens, n_head_kv, n_pages;
    const float * standing;
    size_t standing_stride;
    int32_t * pages;
    size_t list_stride;
    int32_t * n_pages_taken;
};
void launch_list_visible(const VisibleBatch & batch, Stream stream);

}  // namespace edgekv::gpu
