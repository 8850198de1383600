#include "move_device.h"

#include <cstddef>

#include "edgekv.h"

static_assert(sizeof(EdgekvDeviceRow) == sizeof(edgekv_device_row) &&
              offsetof(EdgekvDeviceRow, v) == offsetof(edgekv_device_row, v) &&
              offsetof(EdgekvDeviceRow, k_stride_stream) == offsetof(edgekv_device_row, k_stride_stream) &&
              offsetof(EdgekvDeviceRow, v_stride_stream) == offsetof(edgekv_device_row, v_stride_stream) &&
              offsetof(EdgekvDeviceRow, k_row_bytes) == offsetof(edgekv_device_row, k_row_bytes) &&
              offsetof(EdgekvDeviceRow, v_offset) == offsetof(edgekv_device_row, v_offset) &&
              offsetof(EdgekvDeviceRow, n_heads) == offsetof(edgekv_device_row, n_heads));
static_assert(sizeof(EdgekvDeviceMove) == sizeof(edgekv_move) &&
              offsetof(EdgekvDeviceMove, head) == offsetof(edgekv_move, head) &&
              offsetof(EdgekvDeviceMove, page) == offsetof(edgekv_move, page) &&
              offsetof(EdgekvDeviceMove, slot) == offsetof(edgekv_move, slot));

namespace edgekv::gpu {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) scatter32_kernel(int32_t * dst, const int2 * updates, int n, const int * n_device) {
    if (n_device != nullptr) {
        n = min(n, *n_device);
    }
    const int i = blockIdx.x * kThreads + threadIdx.x;
    if (i < n) {
        dst[updates[i].x] = updates[i].y;
    }
}

__device__ bool is_seen(const RingProblem & p, int page) {
    if (p.standing == nullptr) {
        return p.newest[page] >= 0;
    }
    for (int token = 0; token < p.n_tokens; ++token) {
        if (p.standing[token * p.standing_stride + page] >= 0.0f) {
            return true;
        }
    }
    return false;
}

// A warp for K or V of one (page, head), heads innermost: what a page holds lies together in home.
__global__ void __launch_bounds__(kThreads) gather_ring_kernel(const RingProblem p) {
    const unsigned lane = threadIdx.x % kWarp;
    const int n_heads = static_cast<int>(p.row.n_heads);
    const int n_ring = p.end - p.first;
    const int64_t n_units = 2ll * n_ring * n_heads;
    const int64_t n_warps = static_cast<int64_t>(gridDim.x) * (kThreads / kWarp);
    for (int64_t unit = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp; unit < n_units;
         unit += n_warps) {
        const bool value = unit % 2 != 0;
        const int head = static_cast<int>(unit / 2 % n_heads);
        const int page = p.first + static_cast<int>(unit / 2 / n_heads);
        const int64_t at = static_cast<int64_t>(head) * n_ring + (page - p.first);
        const bool moves = p.slots[static_cast<int64_t>(head) * p.slots_stride + page] < 0 &&
                           (p.fresh == nullptr || p.fresh[page] == 0) && is_seen(p, page);
        if (lane == 0 && !value) {
            p.held[at] = moves ? 1 : 0;
        }
        if (moves) {
            if (lane == 0) {
                reads_home(p.page_tokens * (value ? p.row.v_row_bytes : p.row.k_row_bytes));
            }
            move_pages::copy_page(p.row, value, head, p.stream, page, p.page_tokens, p.n_cells, p.ring + at * p.slot_bytes, lane);
        }
    }
}

unsigned blocks_for(int64_t n_warps, int n_blocks) {
    const int64_t wanted = (n_warps + kThreads / kWarp - 1) / (kThreads / kWarp);
    return static_cast<unsigned>(wanted < n_blocks ? wanted : n_blocks);
}

}  // namespace

void launch_scatter32(int32_t * dst, const int2 * updates, int n, const int * n_device, Stream stream) {
    if (n > 0) {
        launch(scatter32_kernel, {static_cast<unsigned>((n + kThreads - 1) / kThreads)}, kThreads, 0, stream, dst, updates, n,
               n_device);
    }
}

void launch_gather_ring(const RingProblem & problem, Stream stream, int n_blocks) {
    const int64_t n_units = 2ll * (problem.end - problem.first) * static_cast<int64_t>(problem.row.n_heads);
    if (n_units > 0) {
        launch(gather_ring_kernel, {blocks_for(n_units, n_blocks)}, kThreads, 0, stream, problem);
    }
}

void launch_gather_pages(const EdgekvDeviceRow * rows, const EdgekvDeviceMove * moves, int n_moves, char * arena,
                         size_t slot_bytes, int page_tokens, int n_cells, int pages_per_stream, Stream stream, int n_blocks) {
    if (n_moves > 0) {
        launch(edgekv_gather_pages, {blocks_for(2ll * n_moves, n_blocks)}, kThreads, 0, stream, rows, moves, n_moves, arena,
               static_cast<unsigned long long>(slot_bytes), page_tokens, n_cells, pages_per_stream);
    }
}

bool stage_rows(char * k, char * v, const EdgekvDeviceRow & row, int stream, int n_cells, Stream copies) {
    if (n_cells <= 0) {
        return true;
    }
    const size_t before = static_cast<size_t>(n_cells - 1), heads_before = static_cast<size_t>(row.n_heads - 1);
    const size_t k_bytes = before * row.k_stride_cell + heads_before * row.k_stride_head + row.k_row_bytes;
    const size_t v_bytes = before * row.v_stride_cell + heads_before * row.v_stride_head + row.v_row_bytes;
    return copy_async(k, reinterpret_cast<const char *>(row.k + stream * row.k_stride_stream), k_bytes, copies) &&
           copy_async(v, reinterpret_cast<const char *>(row.v + stream * row.v_stride_stream), v_bytes, copies);
}

}  // namespace edgekv::gpu
