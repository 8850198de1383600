// The kernels that move bytes: they update mirrors of host tables, copy cold pages into the ring (mode exact), migrate pages into the arena,
// and copy all cells of a stream into the staging buffer (prompts). Home is pinned host memory: kernels read it in place.
#pragma once

#include "cuda/kernels/places.h"
#include "cuda/kernels/move_pages.cuh"

namespace edgekv::gpu {

// dst[updates[i].x] = updates[i].y for i < n; no two updates name the same place.
void launch_scatter32(int32_t * dst, const int2 * updates, int n, Stream stream);

// Copies pages [first, end) of all KV heads of a layer into the ring, except empty pages, pages with a slot and pages that this ubatch
// wrote. All pointers are to device memory; the launch copies `layer`.
struct RingProblem {
    EdgekvDeviceLayer layer;
    int stream;   // of the cache
    int n_cells;  // of the stream in home: rows of the last page past it are neither read nor written
    int page_tokens;
    int first, end;

    const int32_t * slots;  // [n_heads][slots_stride] by page of the stream; -1: the page is only in home
    size_t slots_stride;
    const int32_t * newest;  // by page of the stream; -1: empty
    const uint8_t * fresh;   // by page of the stream; not zero: this ubatch stored in it, and home may not show it yet; or null

    char * ring;        // slot (head, page) = head * (end - first) + page - first, laid out as in the arena: K rows, V rows at layer.v_offset
    size_t slot_bytes;
    uint8_t * held;     // out, by slot of the ring: 1: the page is there, 0: not
};
// n_blocks limits the multiprocessors that the copy takes from other kernels; kGatherBlocks saturate any link.
constexpr int kGatherBlocks = 64;
void launch_gather_ring(const RingProblem & problem, Stream stream, int n_blocks = kGatherBlocks);

// Prompts: copies cells [0, n_cells) of one stream of a layer, of the heads that `layer` counts, to `k` and `v`.
// A page with a slot comes from the slot; every other page comes over the link, once. A page that gets a slot (the table says -2 - slot)
// is copied into it as well.
struct StageProblem {
    EdgekvDeviceLayer layer;
    int stream;   // of the cache
    int n_cells;
    int page_tokens;
    const int32_t * slots;  // [n_heads][slots_stride] by page of the stream
    size_t slots_stride;
    char * arena;
    size_t slot_bytes;
    CellRows k, v;  // of the stream
};
void launch_stage(const StageProblem & problem, Stream stream, int n_blocks = kGatherBlocks);

// Copies listed rows without a slot to the staging buffer, each once: a set bit in `brought` says that the row is already there.
struct BringProblem {
    EdgekvDeviceLayer layer;
    int stream;  // of the cache
    int page_tokens;
    const int32_t * cells;   // [n_lists][list_stride]; list l belongs to head l%n_heads
    const int32_t * n_rows;  // [n_lists]
    size_t list_stride;
    int n_lists;
    const int32_t * slots;  // [n_heads][slots_stride] by page of the stream
    size_t slots_stride;
    uint32_t * brought;     // [n_heads][brought_stride], a bit for each cell
    size_t brought_stride;
    char * k;  // of the stream
    char * v;
};
void launch_bring(const BringProblem & problem, Stream stream, int n_blocks = kGatherBlocks);

}  // namespace edgekv::gpu
