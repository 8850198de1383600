// Decode attention over a paged view of the KV cache: the kernel's contract.
//
// One call serves one layer and one stream. All threads of the compute pool call attend_run() with the same problem and
// workspace and their own `ith`; each handles a contiguous share of the (tile, KV head) units and leaves a partial softmax
// (max, sum, out) in the workspace; the thread that arrives last merges the partials into `out`. Where mass is observed, all
// threads then call attend_observe(), behind a barrier of the caller's and before the workspace is used again: each turns the
// weights of the pages it walked itself, still in its cache, into mass. There is no barrier inside and no allocation.
//
// Nothing here knows ggml, llama.cpp or Python.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgekv {

enum class Isa : int { portable = 0, avx2 = 1, avx512 = 2 };

enum class CellType : int { f16 = 0, q8_0 = 1 };  // q8_0: blocks of 32 as {f16 scale; int8 x 32}

enum class MaskType : int { none = 0, f16 = 1, f32 = 2 };

constexpr int kMaxQueryTokens = 16;

// The pages to attend, for each query token and KV head: ascending, inside the view, each at most once.
struct AttendSelection {
    const int32_t * pages;    // [n_tokens][n_head_kv][stride]; null: every page
    const int32_t * n_pages;  // [n_tokens][n_head_kv]
    size_t stride;
    const float * coverage;  // [n_tokens][n_head]: what observed mass is multiplied with, or null
};

// Copies of pages in faster or denser memory: slot s holds page_tokens rows of K, and of V at `v_offset`, without gaps.
struct AttendArena {
    const char * data;  // null: all pages are read from home, which is `k` and `v`
    size_t slot_bytes, v_offset;
    const int32_t * slots;  // [n_head_kv][slots_stride], -1: home
    size_t slots_stride;
};

// What one KV head's selected pages came to in a run; added to, never overwritten.
struct AttendHits {
    double n_selected, n_hits;   // pages, summed over query tokens
    double mass, mass_hits;      // sum over the query heads; only counted where mass is observed
};

// All strides are in bytes. Rows of one head are contiguous; everything else goes through a stride.
struct AttendProblem {
    int head_dim;     // 64, 80, 96, 128 or 256 (q8_0: a multiple of 32)
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
    float softcap;  // logit = softcap * tanh(scale*qk / softcap) where non-zero

    char * out;  // f32 [n_tokens][n_head][head_dim]
    size_t out_stride_token, out_stride_head;

    // Attention mass, added to (never overwritten): per KV head and page, the softmax weight on the page, maximum / sum over the
    // query heads of the group; tokens add up. Null: not observed. Floats [n_head_kv][mass_stride], page p of this view at p.
    float * mass_max;
    float * mass_sum;
    size_t mass_stride;  // in floats

    // With a selection the arena is used, mass and hits are written by attend_run() itself, and attend_observe() does nothing.
    AttendSelection selection;
    AttendArena arena;
    AttendHits * hits;  // [n_head_kv], or null
};

// Bytes of workspace that attend_run() needs for up to `n_threads` threads. The workspace must be 64-byte aligned and its first
// 64 bytes zero before the first run; a run leaves them zero again.
size_t attend_workspace_bytes(const AttendProblem & problem, int n_threads);

void attend_run(const AttendProblem & problem, void * workspace, int ith, int nth, Isa isa);
void attend_observe(const AttendProblem & problem, const void * workspace, int ith, int nth, Isa isa);

bool isa_supported(Isa isa);  // compiled in and present on this CPU
Isa isa_best();
const char * isa_name(Isa isa);
bool attend_supports(int head_dim, CellType k_type, CellType v_type);

// The specification: double precision, plain loops, single thread; reads home only and counts no hits. With K in q8_0 a query is part of the specification in its
// quantised form: per block of 32 int8 values, scale = max |q| / 127, rounded to nearest even (the blocks' scales stay float).
void attend_reference(const AttendProblem & problem);

}  // namespace edgekv
