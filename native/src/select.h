// Selection: which pages one query token attends in one KV head, from the sketches' estimates, the policy's score and the pins.
//
//   mass(page)  = sum over the query heads of softmax(estimates) on the page
//   value(page) = (1 - blend) * mass + blend * priority; pinned and recent pages come first, invisible ones never
//
// Taken are the best by value, until the page budget is spent (uniform), down to a value that all heads share (pooled), or until
// the estimated coverage is reached, whichever is less. Where the estimated coverage would stay below the floor, everything is.
//
// Nothing here knows ggml, llama.cpp or Python. NumPy's specification is edgekv/kernels/select.py.
#pragma once

#include "attend.h"

namespace edgekv {

constexpr int kValueBuckets = 2048;  // by the upper bits of a float: eight to an octave

struct SelectProblem {
    int n_pages;   // in view
    int per_page;  // strips of a page
    int group;     // query heads

    const float * estimates;  // [group][stride] by strip, natural log; null: no estimate, `priority` alone counts
    size_t stride;
    const float * known;     // [n_pages] mass of an earlier scan, in place of estimates; or null
    const float * sinks;     // [group] attention-sink logits, or null
    const float * standing;  // [n_pages] -inf: the token cannot see it, +inf: it is always taken (recent pages), otherwise 0
    const float * priority;  // [n_pages], or null: zero
    const uint8_t * pinned;  // [n_pages] not zero: always taken; or null

    int n_budget;      // pages a head may take, pins included; at least 0. Pooled: not used
    float threshold;   // pooled: the value from which a page is taken; otherwise -1
    float coverage;    // 0: no target
    float floor;
    float blend;

    int32_t * pages;     // out [n_pages], ascending
    float * covered;     // out [group], estimated coverage of each query head; 1 without estimates
    float * mass;        // out [n_pages] mass, as in `known`; or null
    float * mass_max;    // the estimate of pages that were not taken is added, maximum / sum over the query heads; or null
    float * mass_sum;
    uint32_t * buckets;  // [kValueBuckets] counts the values of visible pages that no pin takes; or null

    char * scratch;  // select_scratch_bytes(), 64-byte aligned
};

struct SelectResult {
    int n_taken;
    int n_visible;
    int n_pinned;
    float coverage;   // mean of `covered`, before a fallback
    bool fell_back;
};

size_t select_scratch_bytes(int n_pages, int per_page, int group);
SelectResult select_pages(const SelectProblem & problem, Isa isa);

// The smallest value of a bucket: the same on every instruction set.
float bucket_value(int bucket);

}  // namespace edgekv
