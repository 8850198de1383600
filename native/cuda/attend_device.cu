#include "attend_device.h"

#include "attend_part.cuh"

namespace edgekv::gpu {
namespace {

template <CellType kTypeK, CellType kTypeV, int kLanes, int kHeads>
__global__ void __launch_bounds__(kWarps*kWarp, resident_blocks(kHeads))
attend_part(AttendProblem p, AttendPart part, AttendWorkspace workspace) {
    Kernel<kTypeK, kTypeV, kLanes, kHeads>::run(p, part, workspace);
}

// Heads of a unit. K and V of different types are rare: they have one kernel for every group.
int heads_of(const AttendProblem & p) {
    const int group = p.n_head/p.n_head_kv;
    return p.k_type != p.v_type ? 4 : group <= 2 ? 2 : group <= 4 ? 4 : 8;
}

template <CellType kTypeK, CellType kTypeV, int kLanes, int kHeads>
void launch_part(const AttendProblem & p, const AttendPart & part, const AttendWorkspace & workspace, Stream stream) {
    const Grid grid = {static_cast<unsigned>(part.n_splits), static_cast<unsigned>(p.n_head_kv),
                       static_cast<unsigned>(units_of(p, kHeads).grid_z)};
    launch(attend_part<kTypeK, kTypeV, kLanes, kHeads>, grid, kWarps*kWarp,
           sizeof(typename Kernel<kTypeK, kTypeV, kLanes, kHeads>::Shared), stream, p, part, workspace);
}

template <CellType kTypeK, CellType kTypeV, int kHeads>
void launch_lanes(const AttendProblem & p, const AttendPart & part, const AttendWorkspace & workspace, Stream stream) {
    if (p.head_dim <= 64) {
        launch_part<kTypeK, kTypeV, 8, kHeads>(p, part, workspace, stream);
    } else if (p.head_dim <= 128) {
        launch_part<kTypeK, kTypeV, 16, kHeads>(p, part, workspace, stream);
    } else {
        launch_part<kTypeK, kTypeV, 32, kHeads>(p, part, workspace, stream);
    }
}

template <CellType kType>
void launch_heads(const AttendProblem & p, const AttendPart & part, const AttendWorkspace & workspace, Stream stream) {
    switch (heads_of(p)) {
        case 2: return launch_lanes<kType, kType, 2>(p, part, workspace, stream);
        case 4: return launch_lanes<kType, kType, 4>(p, part, workspace, stream);
        default: return launch_lanes<kType, kType, 8>(p, part, workspace, stream);
    }
}

bool aligned(const void * p, size_t n) { return reinterpret_cast<uintptr_t>(p)%n == 0; }

}  // namespace

bool attend_device_supports(const AttendProblem & p) {
    const bool dims = p.head_dim == 64 || p.head_dim == 80 || p.head_dim == 96 || p.head_dim == 128 || p.head_dim == 256;
    const bool shape = p.n_head_kv > 0 && p.n_head%p.n_head_kv == 0 && p.n_head >= p.n_head_kv &&
                       p.n_head <= p.n_head_kv*kMaxGroup && p.n_tokens >= 1 && p.n_tokens <= kMaxQueryTokens &&
                       p.n_cells >= 0 && p.page_tokens > 0 &&
                       p.page_tokens%kStrip == 0;
    const auto rows = [&](CellType type, const char * data, size_t stride_cell, size_t stride_head) {
        const size_t n = type == CellType::q8_0 ? 2 : 16;
        return (type == CellType::f16 || p.head_dim%32 == 0) && stride_cell%n == 0 && stride_head%n == 0 && aligned(data, n);
    };
    return dims && shape && rows(p.k_type, p.k, p.k_stride_cell, p.k_stride_head) &&
           rows(p.v_type, p.v, p.v_stride_cell, p.v_stride_head) && aligned(p.q, 16) && p.q_stride_token%16 == 0 &&
           p.q_stride_head%16 == 0 && aligned(p.arena.data, 16) && p.arena.slot_bytes%16 == 0 && p.arena.v_offset%16 == 0;
}

int attend_device_splits(const AttendProblem & p, int n_pages, int n_sm) {
    // one wave of blocks; a strip for each warp at least
    const int blocks = p.n_head_kv*units_of(p, heads_of(p)).grid_z;
    const int most = (n_pages*(p.page_tokens/kStrip) + kWarps - 1)/kWarps;
    const int n = resident_blocks(heads_of(p))*n_sm/blocks;
    return n > most ? (most > 1 ? most : 1) : n > 1 ? n : 1;
}

void launch_attend(const AttendProblem & problem, const AttendPart & part, void * workspace, int n_partials, Stream stream) {
    const AttendWorkspace places = attend_workspace(problem, workspace, n_partials);
    if (problem.k_type == CellType::f16) {
        if (problem.v_type == CellType::f16) {
            launch_heads<CellType::f16>(problem, part, places, stream);
        } else {
            launch_lanes<CellType::f16, CellType::q8_0, 4>(problem, part, places, stream);
        }
    } else if (problem.v_type == CellType::q8_0) {
        launch_heads<CellType::q8_0>(problem, part, places, stream);
    } else {
        launch_lanes<CellType::q8_0, CellType::f16, 4>(problem, part, places, stream);
    }
}

}  // namespace edgekv::gpu
