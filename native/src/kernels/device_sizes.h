// The sizes of the memory that a device's kernels (native/cuda/kernels) keep between launches, and the division of a problem among launches that
// these sizes depend on. No CUDA: `edgekv plan` needs the sizes on machines without a device too.
#pragma once

#include "kernels/decode/attend.h"
#include "kernels/sketch/sketch.h"

namespace edgekv::gpu {

inline size_t align256(size_t n) { return (n + 255)/256*256; }

// ---- attention ---------------------------------------------------------------------------------------------------------------

// Cells are weighed in strips of 16, whatever the page size; one warp reads a strip.
constexpr int kStrip = 16;
constexpr int kAttendWarps = 4;  // warps of a block

EDGEKV_HOST_AND_DEVICE inline int view_pages(const AttendProblem & p) { return (p.n_cells + p.page_tokens - 1)/p.page_tokens; }
EDGEKV_HOST_AND_DEVICE inline bool has_lists(const AttendProblem & p) { return p.rows.stride != 0; }

// The division of a launch into units: `heads` query heads of one token that share a KV head.
struct Units {
    int n_chunks;       // units of a token and KV head
    int n_units;        // units that read the same rows: with lists those of one token, else of all tokens
    int n_together;     // units in one block: 1, 2 or 4
    int grid_z;
};

EDGEKV_HOST_AND_DEVICE inline Units units_of(const AttendProblem & p, int heads) {
    Units u;
    const bool lists = has_lists(p);
    u.n_chunks = (p.n_head/p.n_head_kv + heads - 1)/heads;
    u.n_units = lists ? u.n_chunks : u.n_chunks*p.n_tokens;
    u.n_together = u.n_units > 2 ? 4 : u.n_units;
    u.grid_z = (lists ? p.n_tokens : 1)*((u.n_units + u.n_together - 1)/u.n_together);
    return u;
}

// Query heads of a unit. K and V of different types are rare: one kernel serves them for every group.
inline int heads_of(const AttendProblem & p) {
    const int group = p.n_head/p.n_head_kv;
    return p.k_type != p.v_type ? 4 : group <= 2 ? 2 : group <= 4 ? 4 : 8;
}

// Blocks that a multiprocessor holds: a thread has 168 registers, or 255 for eight heads.
constexpr int resident_blocks(int heads) { return heads == 8 ? 2 : 3; }

// Splits that keep `n_sm` multiprocessors busy if each list or part has up to `n_pages` pages; 1 or more.
inline int attend_device_splits(const AttendProblem & p, int n_pages, int n_sm) {
    // one wave of blocks, with at least a strip for each warp
    const int blocks = p.n_head_kv*units_of(p, heads_of(p)).grid_z;
    const int most = (n_pages*(p.page_tokens/kStrip) + kAttendWarps - 1)/kAttendWarps;
    const int n = resident_blocks(heads_of(p))*n_sm/blocks;
    return n > most ? (most > 1 ? most : 1) : n > 1 ? n : 1;
}

// A merge's blocks for the pages of a KV head's lists: one for each query token, up to these.
constexpr int kMostPageBlocks = 8;

EDGEKV_HOST_AND_DEVICE inline int page_blocks(const AttendProblem & p) {
    return !has_lists(p) ? 0 : p.n_tokens < kMostPageBlocks ? p.n_tokens : kMostPageBlocks;
}

// What a block of a merge found in its pages. Consumer cards add doubles at a 64th of their rate for floats.
struct ListSums {
    int n_read, n_hits;
    float mass, mass_hits;
};

// The workspace: the offsets of its parts (see attend_workspace.h), and its bytes including the notes for mass and errors.
struct AttendScratch {
    size_t out, sums, noted, observed_bytes;
};

inline AttendScratch attend_scratch(const AttendProblem & p, int n_partials) {
    constexpr size_t kPair = 2*sizeof(float);
    const size_t n_rows = static_cast<size_t>(p.n_tokens)*p.n_head;
    const size_t n_strips = static_cast<size_t>(view_pages(p))*(p.page_tokens/kStrip);
    AttendScratch s;
    s.out = align256(n_rows*n_partials*kPair);
    s.sums = s.out + align256(n_rows*n_partials*p.head_dim*sizeof(float));
    s.noted = s.sums + align256(static_cast<size_t>(p.n_head_kv)*page_blocks(p)*sizeof(ListSums));
    s.observed_bytes = s.noted + align256(n_rows*n_strips*(has_lists(p) ? kStrip*sizeof(float) : kPair));
    return s;
}

// Bytes for `n_partials` partials of this problem's shapes (lists of any length up to the view); grows with n_cells and
// n_partials. `observed`: mass or errors will be asked for. 256-byte alignment is enough.
inline size_t attend_device_workspace_bytes(const AttendProblem & p, int n_partials, bool observed) {
    const AttendScratch s = attend_scratch(p, n_partials);
    return observed ? s.observed_bytes : s.noted;
}

// ---- selection ---------------------------------------------------------------------------------------------------------------

// The sums of a KV head over query tokens.
struct SampleTotals {
    unsigned long long n_tokens, n_visible, n_certain;
    unsigned long long n_covered;  // tokens with shares estimated by sketches
    unsigned long long missed;     // the estimated shares of attention on the rows that these tokens did not read, in steps of 2^-40
};

// The words by which the blocks of a sampling launch tell each other numbers (see sample_device.cu): one of the launch's, one for each chunk of a
// list's cells, from `norms` on two for each query row and one for each list.
constexpr int kSampleChunkGroups = 16;

struct SampleWords {
    size_t norms, n;
};

EDGEKV_HOST_AND_DEVICE inline int sample_chunks(int n_groups) { return (n_groups + kSampleChunkGroups - 1) / kSampleChunkGroups; }

EDGEKV_HOST_AND_DEVICE inline SampleWords sample_words(size_t n_lists, int n_groups, int group) {
    const size_t norms = 1 + n_lists * sample_chunks(n_groups);
    return {norms, norms + n_lists * (2 * static_cast<size_t>(group) + 1)};
}

inline size_t sample_device_words_bytes(int n_lists, int n_groups, int group) {
    return sample_words(static_cast<size_t>(n_lists), n_groups, group).n * sizeof(unsigned long long);
}

// Copies of rows (hot_rows.h) lie in sets of so many places; beside its rows a set takes so many bytes.
constexpr int kHotRowWays = 8;
constexpr size_t kHotRowSetBytes = kHotRowWays * sizeof(unsigned long long);
constexpr uint32_t kMostHotRowSets = 1u << 27;

}  // namespace edgekv::gpu
