// The kernels that move bytes: mirrors of host tables, cold pages into the ring (mode exact), migration into the arena, and all cells of
// a stream into the staging buffer (prompts). Home is pinned host memory: kernels read it in place.
#pragma once

#include "cuda/gpu.h"
#include "cuda/kernels/move_pages.cuh"

namespace edgekv::gpu {

// dst[updates[i].x] = updates[i].y for i < n; a place is named at most once.
void launch_scatter32(int32_t * dst, const int2 * updates, int n, Stream stream);

// Pages [first, end) of all KV heads of a layer: those that are not empty, that have no slot and that this ubatch did not write
// are copied into the ring. Everything but the numbers is device memory; `layer` is copied into the launch.
struct RingProblem {
    EdgekvDeviceLayer layer;
    int stream;   // of the cache
    int n_cells;  // of the stream in home: rows of a last page behind it are not read, nor written in the ring
    int page_tokens;
    int first, end;

    const int32_t * slots;  // [n_heads][slots_stride] by page of the stream, -1: only in home
    size_t slots_stride;
    const int32_t * newest;  // by page of the stream; -1: empty
    const uint8_t * fresh;   // by page of the stream: not zero, stored in this ubatch, home may not show it yet; or null

    char * ring;        // slot (head, page) = head * (end - first) + page - first, as the arena's: K rows, V rows at layer.v_offset
    size_t slot_bytes;
    uint8_t * held;     // out, by slot of the ring: 1: the page is there, 0: not
};
// n_blocks bounds the part of the device that it takes from kernels beside it; kGatherBlocks saturate any link.
constexpr int kGatherBlocks = 64;
void launch_gather_ring(const RingProblem & problem, Stream stream, int n_blocks = kGatherBlocks);

// Prompts: cells [0, n_cells) of one stream of a layer, all heads, as they lie in home: cells keep their stride and heads their place.
// Pages that have a slot come out of it; all others come over the link, once. Those that are to have a slot (the table says -2 - slot) are
// left there too.
struct StageProblem {
    EdgekvDeviceLayer layer;
    int stream;   // of the cache
    int n_cells;
    int page_tokens;
    const int32_t * slots;  // [n_heads][slots_stride] by page of the stream
    size_t slots_stride;
    char * arena;
    size_t slot_bytes;
    char * k;  // of the stream
    char * v;
};
void launch_stage(const StageProblem & problem, Stream stream, int n_blocks = kGatherBlocks);

// Copies rows of lists that have no slot to the staging buffer, each once: a row whose bit is set in `brought` is there already.
struct BringProblem {
    EdgekvDeviceLayer layer;
    int stream;  // of the cache
    int page_tokens;
    const int32_t * cells;   // [n_lists][list_stride]; list l is of head l%n_heads
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
