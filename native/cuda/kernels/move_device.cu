#include "cuda/kernels/move_device.h"

#include <cstddef>

#include "edgekv_device.h"

static_assert(sizeof(EdgekvDeviceLayer) == sizeof(edgekv_device_layer) &&
              offsetof(EdgekvDeviceLayer, v) == offsetof(edgekv_device_layer, v) &&
              offsetof(EdgekvDeviceLayer, k_stride_stream) == offsetof(edgekv_device_layer, k_stride_stream) &&
              offsetof(EdgekvDeviceLayer, v_stride_stream) == offsetof(edgekv_device_layer, v_stride_stream) &&
              offsetof(EdgekvDeviceLayer, k_row_bytes) == offsetof(edgekv_device_layer, k_row_bytes) &&
              offsetof(EdgekvDeviceLayer, v_offset) == offsetof(edgekv_device_layer, v_offset) &&
              offsetof(EdgekvDeviceLayer, n_heads) == offsetof(edgekv_device_layer, n_heads));
static_assert(sizeof(EdgekvDeviceMove) == sizeof(edgekv_move) &&
              offsetof(EdgekvDeviceMove, head) == offsetof(edgekv_move, head) &&
              offsetof(EdgekvDeviceMove, page) == offsetof(edgekv_move, page) &&
              offsetof(EdgekvDeviceMove, slot) == offsetof(edgekv_move, slot));

namespace edgekv::gpu {
namespace {

using move_pages::copy_rows;
using move_pages::Rows;

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) scatter32_kernel(int32_t * dst, const int2 * updates, int n) {
    const int i = blockIdx.x * kThreads + threadIdx.x;
    if (i < n) {
        dst[updates[i].x] = updates[i].y;
    }
}

// One warp copies K or V of one (page, head); heads are innermost, because a page's rows lie together in home.
__global__ void __launch_bounds__(kThreads) gather_ring_kernel(const RingProblem p) {
    const unsigned lane = threadIdx.x % kWarp;
    const int n_heads = static_cast<int>(p.layer.n_heads);
    const int n_ring = p.end - p.first;
    const int64_t n_units = 2ll * n_ring * n_heads;
    const int64_t n_warps = static_cast<int64_t>(gridDim.x) * (kThreads / kWarp);
    for (int64_t unit = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp; unit < n_units; unit += n_warps) {
        const bool value = unit % 2 != 0;
        const int head = static_cast<int>(unit / 2 % n_heads);
        const int page = p.first + static_cast<int>(unit / 2 / n_heads);
        const int64_t at = static_cast<int64_t>(head) * n_ring + (page - p.first);
        const bool moves = p.slots[static_cast<int64_t>(head) * p.slots_stride + page] < 0 &&
                           (p.fresh == nullptr || p.fresh[page] == 0) && p.newest[page] >= 0;
        if (lane == 0 && !value) {
            p.held[at] = moves ? 1 : 0;
        }
        if (moves) {
            if (lane == 0) {
                reads_home(p.page_tokens * (value ? p.layer.v_row_bytes : p.layer.k_row_bytes));
            }
            move_pages::copy_page(p.layer, value, {head, p.stream, page, p.page_tokens, p.n_cells}, p.ring + at * p.slot_bytes, lane);
        }
    }
}

// One warp copies K or V of one (page, head); heads are innermost.
__global__ void __launch_bounds__(kThreads, 2) stage_kernel(const StageProblem p) {
    const unsigned lane = threadIdx.x % kWarp;
    const int n_heads = static_cast<int>(p.layer.n_heads), n_pages = (p.n_cells + p.page_tokens - 1) / p.page_tokens;
    const int64_t n_units = 2ll * n_pages * n_heads;
    const int64_t n_warps = static_cast<int64_t>(gridDim.x) * (kThreads / kWarp);
    for (int64_t unit = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp; unit < n_units; unit += n_warps) {
        const bool value = unit % 2 != 0;
        const int head = static_cast<int>(unit / 2 % n_heads);
        const int page = static_cast<int>(unit / 2 / n_heads);
        const size_t first = static_cast<size_t>(page) * p.page_tokens;
        const unsigned n_rows = static_cast<unsigned>(min(p.page_tokens, p.n_cells - page * p.page_tokens));
        const unsigned row_bytes = static_cast<unsigned>(value ? p.layer.v_row_bytes : p.layer.k_row_bytes);
        const size_t stride = value ? p.layer.v_stride_cell : p.layer.k_stride_cell;
        const size_t place = first * stride + head * (value ? p.layer.v_stride_head : p.layer.k_stride_head);
        const int32_t slot = p.slots[static_cast<size_t>(head) * p.slots_stride + page];
        const int32_t in_arena = slot >= 0 ? slot : -2 - slot;  // -1: it has no slot and gets none
        char * const dense = in_arena < 0 ? nullptr : p.arena + in_arena * p.slot_bytes + (value ? p.layer.v_offset : 0);
        char * const home = reinterpret_cast<char *>(value ? p.layer.v + p.stream * p.layer.v_stride_stream
                                                           : p.layer.k + p.stream * p.layer.k_stride_stream) + place;
        const CellRows & rows = value ? p.v : p.k;
        const Rows to = {rows.at(first, static_cast<size_t>(head)), rows.stride_cell}, of_slot = {dense, dense != nullptr ? row_bytes : 0};
        if (slot >= 0) {
            copy_rows(to, {nullptr, 0}, of_slot, row_bytes, n_rows, lane);
        } else {
            if (lane == 0) {
                reads_home(n_rows * row_bytes);
            }
            copy_rows(to, of_slot, {home, stride}, row_bytes, n_rows, lane);
        }
    }
}

// One warp copies one row of a list. If several lists name a row, the first warp copies it.
__global__ void __launch_bounds__(kThreads) bring_kernel(const BringProblem p) {
    const unsigned lane = threadIdx.x % kWarp;
    const int n_heads = static_cast<int>(p.layer.n_heads), n_warps = static_cast<int>(gridDim.x) * (kThreads / kWarp);
    const int warp = static_cast<int>(blockIdx.x) * (kThreads / kWarp) + static_cast<int>(threadIdx.x) / kWarp;
    for (int list = 0; list < p.n_lists; ++list) {
        const int head = list % n_heads, n = p.n_rows[list];
        for (int i = warp; i < n; i += n_warps) {
            const int cell = p.cells[list * p.list_stride + i];
            if (p.slots[head * p.slots_stride + cell / p.page_tokens] >= 0) {
                continue;
            }
            unsigned before = 0;
            if (lane == 0) {
                before = atomicOr(p.brought + head * p.brought_stride + cell / 32, 1u << cell % 32);
                if ((before >> cell % 32 & 1) == 0) {
                    reads_home(static_cast<size_t>(p.layer.k_row_bytes + p.layer.v_row_bytes));
                }
            }
            before = __shfl_sync(0xffffffffu, before, 0);
            if ((before >> cell % 32 & 1) != 0) {
                continue;
            }
            const size_t k = cell * p.layer.k_stride_cell + head * p.layer.k_stride_head;
            const size_t v = cell * p.layer.v_stride_cell + head * p.layer.v_stride_head;
            char * const home_k = reinterpret_cast<char *>(p.layer.k + p.stream * p.layer.k_stride_stream) + k;
            char * const home_v = reinterpret_cast<char *>(p.layer.v + p.stream * p.layer.v_stride_stream) + v;
            copy_rows({p.k + k, 0}, {nullptr, 0}, {home_k, 0}, static_cast<unsigned>(p.layer.k_row_bytes), 1, lane);
            copy_rows({p.v + v, 0}, {nullptr, 0}, {home_v, 0}, static_cast<unsigned>(p.layer.v_row_bytes), 1, lane);
        }
    }
}

unsigned blocks_for(int64_t n_warps, int n_blocks) {
    const int64_t wanted = (n_warps + kThreads / kWarp - 1) / (kThreads / kWarp);
    return static_cast<unsigned>(wanted < n_blocks ? wanted : n_blocks);
}

}  // namespace

void launch_scatter32(int32_t * dst, const int2 * updates, int n, Stream stream) {
    if (n > 0) {
        launch(scatter32_kernel, {static_cast<unsigned>((n + kThreads - 1) / kThreads)}, kThreads, 0, stream, dst, updates, n);
    }
}

void launch_gather_ring(const RingProblem & problem, Stream stream, int n_blocks) {
    const int64_t n_units = 2ll * (problem.end - problem.first) * static_cast<int64_t>(problem.layer.n_heads);
    if (n_units > 0) {
        launch(gather_ring_kernel, {blocks_for(n_units, n_blocks)}, kThreads, 0, stream, problem);
    }
}

void launch_bring(const BringProblem & problem, Stream stream, int n_blocks) {
    if (problem.n_lists > 0) {
        launch(bring_kernel, {static_cast<unsigned>(n_blocks)}, kThreads, 0, stream, problem);
    }
}

void launch_stage(const StageProblem & problem, Stream stream, int n_blocks) {
    const int64_t n_pages = (problem.n_cells + problem.page_tokens - 1) / problem.page_tokens;
    const int64_t n_units = 2 * n_pages * static_cast<int64_t>(problem.layer.n_heads);
    if (n_units > 0) {
        launch(stage_kernel, {blocks_for(n_units, n_blocks)}, kThreads, 0, stream, problem);
    }
}

}  // namespace edgekv::gpu
