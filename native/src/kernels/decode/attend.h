// Decode attention over a paged view of the KV cache: the kernel's contract.
//
// One call serves one layer and one stream. All threads of the compute pool call attend_run() with the same problem and
// workspace and their own `ith`. There is no barrier inside and no allocation.
//
// Every cell: each thread handles a contiguous share of the (tile, KV head) units and leaves a partial softmax (max, sum, out) in the
// workspace. The last thread merges the partials into `out`. If mass is observed, all threads then call attend_observe(), after a barrier of
// the caller and before the workspace is used again. Each thread turns the weights of the pages that it walked into mass, because its
// cache still holds them.
//
// Lists of rows: a free thread claims the next tile of 64 rows. The thread that completes a list merges its tiles in order,
// so the result does not depend on the number of threads.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"
#include "kernels/layout.h"

namespace edgekv {

// Counters at the start of a workspace. Their place is the same for every problem, so that no layer writes other numbers over another's counters.
constexpr size_t kAttendHeaderBytes = 64 + kMaxHeadsKv * sizeof(uint32_t);

// The rows to attend, for each query token and KV head: cells inside the view that the token sees, ascending, each at most once. A weight
// multiplies the exponential of its row's logit in numerator and denominator of the softmax; the mask is not read.
struct AttendRows {
    const int32_t * cells;  // [n_tokens][n_head_kv][stride]
    const float * weights;  // the same shape: 1 / the probability of reading the row, at least 1; null: all 1
    const int32_t * n_rows; // [n_tokens][n_head_kv]
    size_t stride;          // the most rows of a list; 0: no lists, every cell that the mask lets a token see
};

// Copies of pages in faster or denser memory: slot s holds page_tokens rows of K, and of V at `v_offset`, without gaps. A slot stores rows
// of K that hold V only once.
struct AttendArena {
    const char * data;  // null: all pages are read from home, which is `k` and `v`
    size_t slot_bytes, v_offset;
    const int32_t * slots;  // [n_head_kv][slots_stride], -1: home
    size_t slots_stride;
};

// Copies of single rows of lists, in memory where home is a file, in the device's where it is the host's: a slot holds a row of K, and its row of V at
// `v_offset`.
struct AttendCopies {
    const char * data;  // null: there are none
    size_t slot_bytes, v_offset;
    const int32_t * slots;  // as AttendRows::cells: the slot of each row; below 0: none. On a device see kBrought (hot_rows.h)
};

// Sums over the rows that one KV head read. A run adds to them.
struct AttendHits {
    double n_read, n_hits;   // rows read, summed over query tokens, and the part of them in the arena
    double mass, mass_hits;  // mass on these rows, summed over the query heads
    double error, n_errors;  // estimated relative errors of query heads' outputs: their sum and number
};

// All strides are in bytes. Rows of one head are contiguous; everything else goes through a stride.
struct AttendProblem {
    int head_dim;     // of K; see attend_supports()
    int v_in_k;       // 0: V has rows of its own, of head_dim channels. Otherwise the first v_in_k channels of a row of K are its V; `v` is unused
    int n_head;       // query heads; a multiple of n_head_kv
    int n_head_kv;
    int n_tokens;     // query tokens, 1..kMaxQueryTokens
    int n_cells;      // cells in view; need not be a multiple of page_tokens
    int page_tokens;  // cells per page; a multiple of 16

    const char * q;  // f32 [n_tokens][n_head][head_dim]
    size_t q_stride_token, q_stride_head;

    CellType k_type, v_type;
    const char * k;  // [n_cells][n_head_kv][head_dim]
    size_t k_stride_cell, k_stride_head;
    const char * v;
    size_t v_stride_cell, v_stride_head;

    MaskType mask_type;  // additive; -inf hides a cell, any finite value is added to the scaled logit
    const char * mask;   // [n_tokens][n_cells]
    size_t mask_stride_token;

    const float * sinks;  // [n_head] attention-sink logits, or null
    float scale;
    float softcap;  // if non-zero: logit = softcap * tanh(scale*qk / softcap)
    float max_bias;  // if non-zero, alibi_slope() multiplies the mask; rows of lists have no mask

    char * out;  // f32 [n_tokens][n_head][attend_v_dim()]
    size_t out_stride_token, out_stride_head;

    // Attention mass by KV head and page: the softmax weight on the page, as maximum and as sum over the query heads of the group. A run adds
    // each token's mass. Floats [n_head_kv][mass_stride], page p of this view at p. Null: not observed.
    float * mass_max;
    float * mass_sum;
    size_t mass_stride;  // in floats

    // With lists of rows, attend_run() itself uses the arena and writes mass and hits, and attend_observe() does nothing. The mass is then a
    // consistent estimate of the mass of all cells.
    AttendRows rows;
    AttendArena arena;
    AttendCopies copies;  // the host has them beside no arena
    AttendHits * hits;  // [n_head_kv], or null
    // The relative error of an output o, |o - the output over all cells| / |o|, is estimated from the rows themselves, as the standard
    // deviation of the ratio of two sampled sums: sqrt(sum of (1 - p) (w e |v - o|)^2) / (sum of w e) / |o|. It is estimated for KV heads h
    // with (h + error_turn) % error_every == 0; error_every 0: for none.
    int error_every, error_turn;
};

// ALiBi's slope of a query head: for the first n heads, n a power of two, a geometric series from 2^(-max_bias/n) on; for further heads every second
// element of the series for 2n (Press et al., Train Short, Test Long, 2021; as in ggml). 1 without ALiBi.
inline float alibi_slope(const AttendProblem & problem, int head) {
    if (problem.max_bias == 0.0f) {
        return 1.0f;
    }
    int n = 1;
    while (2 * n <= problem.n_head) {
        n *= 2;
    }
    const float step = -problem.max_bias / static_cast<float>(n);
    return head < n ? std::exp2(step * static_cast<float>(head + 1)) : std::exp2(step * 0.5f * static_cast<float>(2 * (head - n) + 1));
}

// Bytes of workspace that attend_run() needs for up to `n_threads` threads. The workspace must be 64-byte aligned and its first
// kAttendHeaderBytes zero before the first run; a run leaves them zero again.
size_t attend_workspace_bytes(const AttendProblem & problem, int n_threads);

void attend_run(const AttendProblem & problem, void * workspace, int ith, int nth, Isa isa);
void attend_observe(const AttendProblem & problem, const void * workspace, int ith, int nth, Isa isa);

// Head sizes 64, 72, 80, 96, 112, 128, 192, 256 and 512; in blocks those that are multiples of 32.
bool attend_supports(int head_dim, CellType k_type, CellType v_type);

// Rows of K that hold V: head_dim is a multiple of 8 (in blocks of 32) up to kMaxHeadDim, and V has 64, 128, ... of these channels.
bool attend_supports_shared(int head_dim, int v_in_k, CellType type);

// A layer's heads: their number and sizes, and types of their rows.
struct AttendHeads {
    int n_head, n_head_kv;
    int head_dim_k, head_dim_v;
    bool v_in_k;  // the first head_dim_v channels of a row of K are its V
    CellType k_type, v_type;
};
bool attend_supports(const AttendHeads & heads);

static inline int attend_v_dim(const AttendProblem & p) { return p.v_in_k != 0 ? p.v_in_k : p.head_dim; }

// The specification: double precision, plain loops, one thread. It reads home only, and counts errors but no hits. With K in blocks the query's
// quantised form is part of the specification: blocks of 32 int8 values, scale = max |q| / 127 in float, rounded to nearest even.
void attend_reference(const AttendProblem & problem);

}  // namespace edgekv
