#include "cuda/kernels/sight_device.h"

namespace edgekv::gpu {
namespace {

constexpr int kThreads = 256;

// A hidden cell is -inf. Comparing bits makes a NaN visible, as on the CPU.
__device__ inline bool is_seen(const SightProblem & p, int s, int token, int cell) {
    const char * const row = p.mask + s * p.mask_stride_stream + token * p.mask_stride_token;
    switch (p.mask_type) {
        case MaskType::f16: return reinterpret_cast<const uint16_t *>(row)[cell] != 0xfc00u;
        case MaskType::f32: return reinterpret_cast<const uint32_t *>(row)[cell] != 0xff800000u;
        default: return true;
    }
}

// One thread per cell, one warp per half of a group; grid: cells, tokens, streams.
__global__ void __launch_bounds__(kThreads) sight_kernel(const SightProblem p) {
    const int token = blockIdx.y, s = blockIdx.z;
    const int64_t stream = p.first_stream + s, query = static_cast<int64_t>(s) * p.n_tokens + token;
    const int cell = blockIdx.x * kThreads + threadIdx.x;

    const bool visible = cell < p.n_cells && is_seen(p, s, token, cell);
    bool certain = false;
    if (visible) {
        const int64_t own = p.k_idxs[query] - stream * p.n_cells_stream;
        const int32_t position = p.positions[stream * p.n_cells_stream + own];
        const int64_t group = stream * p.groups_per_stream + cell / kGroupCells;
        const int32_t other = p.positions[stream * p.n_cells_stream + cell];
        const int32_t recent = max(0, position + 1 - max(p.recent_tokens, 1)) / p.page_tokens * p.page_tokens;
        certain = other < (p.sink_tokens + p.page_tokens - 1) / p.page_tokens * p.page_tokens || other >= recent ||
                  (p.pins[2 * group + cell % kGroupCells / kWarp] >> cell % kWarp & 1) != 0 || p.open[group] != 0;
    }
    const unsigned seen = __ballot_sync(0xffffffffu, visible), read = __ballot_sync(0xffffffffu, certain);
    if (threadIdx.x % kWarp == 0 && cell < (p.n_cells + kGroupCells - 1) / kGroupCells * kGroupCells) {
        uint32_t * const halves = reinterpret_cast<uint32_t *>(p.sight + query * p.stride + cell / kGroupCells);
        const int half = cell % kGroupCells / kWarp;
        halves[half] = seen;
        halves[2 + half] = read;
    }
}

}  // namespace

void launch_sight(const SightProblem & problem, Stream stream) {
    const Grid grid = {static_cast<unsigned>((problem.n_cells + kThreads - 1) / kThreads), static_cast<unsigned>(problem.n_tokens),
                       static_cast<unsigned>(problem.n_streams)};
    launch(sight_kernel, grid, kThreads, 0, stream, problem);
}

}  // namespace edgekv::gpu
