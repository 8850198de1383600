// The kernels that move bytes: mirrors of host tables, cold pages into the ring (mode exact), migration into the arena, and whole
// streams into the staging buffer (prompts). Home is pinned host memory: kernels read it in place.
#pragma once

#include "gpu.h"
#include "move_pages.cuh"

namespace edgekv::gpu {

// dst[updates[i].x] = updates[i].y for i < n; a place is named at most once. The number comes from the device where `n_device` is
// not null, and is then at most n. Launch shape by n.
void launch_scatter32(int32_t * dst, const int2 * updates, int n, const int * n_device, Stream stream);

// Pages [first, end) of all KV heads of a row: those that some token sees, that have no slot and that this ubatch did not write
// are copied into the ring. Everything but the numbers is device memory; `row` is copied into the launch.
struct RingProblem {
    EdgekvDeviceRow row;
    int stream;   // of the cache
    int n_cells;  // of the stream in home: rows of a last page behind it are not read, nor written in the ring
    int page_tokens;
    int first, end;

    const int32_t * slots;  // [n_heads][slots_stride] by page of the stream, -1: only in home
    size_t slots_stride;
    // who sees a page: standing of the stream's tokens, or where null, every page with newest >= 0
    const float * standing;  // [n_tokens][standing_stride]
    size_t standing_stride;
    int n_tokens;
    const int32_t * newest;  // by page of the stream
    const uint8_t * fresh;   // by page of the stream: not zero, stored in this ubatch, home may not show it yet; or null

    char * ring;        // slot (head, page) = head * (end - first) + page - first, as the arena's: K rows, V rows at row.v_offset
    size_t slot_bytes;
    uint8_t * held;     // out, by slot of the ring: 1: the page is there, 0: not
};
// n_blocks bounds how much of the device it takes from what runs beside it; kGatherBlocks saturate any link.
constexpr int kGatherBlocks = 64;
void launch_gather_ring(const RingProblem & problem, Stream stream, int n_blocks = kGatherBlocks);

// Migration: `moves` and `rows` in device memory; n_cells: of a stream. Kernel: edgekv_gather_pages of move_pages.cuh.
void launch_gather_pages(const EdgekvDeviceRow * rows, const EdgekvDeviceMove * moves, int n_moves, char * arena,
                         size_t slot_bytes, int page_tokens, int n_cells, int pages_per_stream, Stream stream,
                         int n_blocks = kGatherBlocks);

// Prompts: cells [0, n_cells) of one stream of a row, all heads, as they lie in home: cells keep their stride and heads their
// place. One DMA each for K and V, for which nothing of the device is taken; the tail of the last cell behind its last head is
// not copied. `row` is the host's copy of the row.
bool stage_rows(char * k, char * v, const EdgekvDeviceRow & row, int stream, int n_cells, Stream copies);

}  // namespace edgekv::gpu
