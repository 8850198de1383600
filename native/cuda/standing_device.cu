#include "standing_device.h"

namespace edgekv::gpu {
namespace {

constexpr int kThreads = 256;

// Whether any cell of [first, end) is not hidden. A hidden cell is -inf: the bits are compared, so that a NaN is seen as on the
// CPU.
__device__ bool any_visible(const StandingProblem & p, const char * row, int first, int end) {
    if (p.mask_type == MaskType::none) {
        return first < end;
    }
    const bool f16 = p.mask_type == MaskType::f16;
    const size_t size = f16 ? 2 : 4;
    const char * const from = row + first * size;
    const size_t n_bytes = (end - first) * size;
    if ((reinterpret_cast<uintptr_t>(from) | n_bytes) % sizeof(uint4) == 0) {
        const uint32_t hidden = f16 ? 0xfc00fc00u : 0xff800000u;
        uint32_t differs = 0;
        for (size_t i = 0; i < n_bytes; i += sizeof(uint4)) {
            const uint4 x = *reinterpret_cast<const uint4 *>(from + i);
            differs |= (x.x ^ hidden) | (x.y ^ hidden) | (x.z ^ hidden) | (x.w ^ hidden);
        }
        return differs != 0;
    }
    for (size_t i = 0; i < n_bytes; i += size) {
        if (f16 ? *reinterpret_cast<const uint16_t *>(from + i) != 0xfc00u
                : *reinterpret_cast<const uint32_t *>(from + i) != 0xff800000u) {
            return true;
        }
    }
    return false;
}

// A thread for each page; grid: pages, tokens, streams. `standing` is zero before.
__global__ void __launch_bounds__(kThreads) standing_kernel(const StandingProblem p, int n_pages) {
    const int token = blockIdx.y, s = blockIdx.z, stream = p.first_stream + s;
    const int64_t query = static_cast<int64_t>(s) * p.n_tokens + token;
    float * const standing = p.standing + query * p.stride;
    const int page = blockIdx.x * kThreads + threadIdx.x;

    bool visible = false;
    if (page < n_pages) {
        const int first = page * p.page_tokens;
        const int end = min(first + p.page_tokens, p.n_cells);
        visible = any_visible(p, p.mask + s * p.mask_stride_stream + token * p.mask_stride_token, first, end);
        float x = -INFINITY;
        if (visible) {
            const int64_t cell = p.k_idxs[query] - static_cast<int64_t>(stream) * p.n_cells_stream;
            const int32_t position = p.positions[static_cast<int64_t>(stream) * p.n_cells_stream + cell];
            const int64_t at = static_cast<int64_t>(stream) * p.pages_per_stream + page;
            // the page that is being written has no sketch to trust, and is recent too
            const bool always = p.oldest[at] < p.sink_tokens || p.newest[at] > position - max(p.recent_tokens, 1);
            x = always ? INFINITY : 0.0f;
        }
        standing[page] = x;
    }
    const unsigned seen = __ballot_sync(0xffffffffu, visible);
    if (threadIdx.x % kWarp == 0 && seen != 0) {
        atomicAdd(standing + p.pages_per_stream, static_cast<float>(__popc(seen)));  // whole numbers: exact in any order
    }
}

}  // namespace

bool launch_standing(const StandingProblem & problem, Stream stream) {
    const int n_pages = (problem.n_cells + problem.page_tokens - 1) / problem.page_tokens;
    const size_t n_queries = static_cast<size_t>(problem.n_streams) * problem.n_tokens;
    if (!zero_async(problem.standing, n_queries * problem.stride * sizeof(float), stream)) {
        return false;
    }
    const Grid grid = {static_cast<unsigned>((n_pages + kThreads - 1) / kThreads), static_cast<unsigned>(problem.n_tokens),
                       static_cast<unsigned>(problem.n_streams)};
    launch(standing_kernel, grid, kThreads, 0, stream, problem, n_pages);
    return true;
}

}  // namespace edgekv::gpu
