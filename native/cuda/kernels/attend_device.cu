#include <algorithm>
#include <iterator>

#include "cuda/kernels/attend_launch.cuh"

namespace edgekv::gpu {
namespace {

bool aligned(const void * p, size_t n) { return reinterpret_cast<uintptr_t>(p)%n == 0; }

}  // namespace

bool attend_device_supports(const AttendProblem & p) {
    constexpr int sizes[] = {64, 72, 80, 96, 112, 128, 192, 256};
    const bool dims = std::find(std::begin(sizes), std::end(sizes), p.head_dim) != std::end(sizes);
    const bool shape = p.n_head_kv > 0 && p.n_head%p.n_head_kv == 0 && p.n_head >= p.n_head_kv &&
                       p.n_head <= p.n_head_kv*kMaxGroup && p.n_tokens >= 1 && p.n_tokens <= kMaxQueryTokens &&
                       p.n_cells >= 0 && p.page_tokens > 0 &&
                       p.page_tokens%kStrip == 0;
    const auto rows = [&](CellType type, const char * data, size_t stride_cell, size_t stride_head) {
        const size_t n = in_blocks(type) ? 2 : 16;
        return holds_row(type, p.head_dim) && stride_cell%n == 0 && stride_head%n == 0 && aligned(data, n);
    };
    return dims && shape && rows(p.k_type, p.k, p.k_stride_cell, p.k_stride_head) &&
           rows(p.v_type, p.v, p.v_stride_cell, p.v_stride_head) && aligned(p.q, 16) && p.q_stride_token%16 == 0 &&
           p.q_stride_head%16 == 0 && aligned(p.arena.data, 16) && p.arena.slot_bytes%16 == 0 && p.arena.v_offset%16 == 0;
}

void launch_attend(const AttendProblem & problem, const AttendPart & part, void * workspace, int n_partials, Stream stream) {
    const AttendWorkspace places = attend_workspace(problem, workspace, n_partials);
    if (has_lists(problem)) {
        launch_attend_lists(problem, part, places, stream);
    } else {
        launch_types<false>(problem, part, places, stream);
    }
}

}  // namespace edgekv::gpu
