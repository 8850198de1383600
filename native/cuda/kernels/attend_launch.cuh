// Chooses the kernel of a part for the shapes of a problem. Two sources include it: attend_device.cu for every cell, attend_lists.cu for lists.
#pragma once

#include "cuda/kernels/attend_part.cuh"

namespace edgekv::gpu {
namespace {

template <CellType kTypeK, CellType kTypeV, int kLanes, int kHeads, bool kLists>
__global__ void __launch_bounds__(kWarps*kWarp, resident_blocks(kHeads))
attend_part(AttendProblem p, AttendPart part, AttendWorkspace workspace) {
    wait_for_launch();
    Kernel<kTypeK, kTypeV, kLanes, kHeads, kLists>::run(p, part, workspace);
}

template <CellType kTypeK, CellType kTypeV, int kLanes, int kHeads, bool kLists>
void launch_part(const AttendProblem & p, const AttendPart & part, const AttendWorkspace & workspace, Stream stream) {
    const Grid grid = {static_cast<unsigned>(part.n_splits), static_cast<unsigned>(p.n_head_kv),
                       static_cast<unsigned>(units_of(p, kHeads).grid_z)};
    const auto kernel = attend_part<kTypeK, kTypeV, kLanes, kHeads, kLists>;
    constexpr size_t shared = sizeof(typename Kernel<kTypeK, kTypeV, kLanes, kHeads, kLists>::Shared);
    if (kLists) {
        launch_behind(kernel, grid, kWarps*kWarp, shared, stream, p, part, workspace);
    } else {  // behind copies of another stream
        launch(kernel, grid, kWarps*kWarp, shared, stream, p, part, workspace);
    }
}

template <CellType kTypeK, CellType kTypeV, int kHeads, bool kLists>
void launch_lanes(const AttendProblem & p, const AttendPart & part, const AttendWorkspace & workspace, Stream stream) {
    if (p.head_dim <= 64) {
        launch_part<kTypeK, kTypeV, 8, kHeads, kLists>(p, part, workspace, stream);
    } else if (p.head_dim <= 128) {
        launch_part<kTypeK, kTypeV, 16, kHeads, kLists>(p, part, workspace, stream);
    } else {
        launch_part<kTypeK, kTypeV, 32, kHeads, kLists>(p, part, workspace, stream);
    }
}

template <CellType kType, bool kLists>
void launch_heads(const AttendProblem & p, const AttendPart & part, const AttendWorkspace & workspace, Stream stream) {
    switch (heads_of(p)) {
        case 2: return launch_lanes<kType, kType, 2, kLists>(p, part, workspace, stream);
        case 4: return launch_lanes<kType, kType, 4, kLists>(p, part, workspace, stream);
        default: return launch_lanes<kType, kType, 8, kLists>(p, part, workspace, stream);
    }
}

template <CellType kTypeK, CellType kTypeV, bool kLists>
void launch_pair(const AttendProblem & p, const AttendPart & part, const AttendWorkspace & workspace, Stream stream) {
    if constexpr (kTypeK == kTypeV) {
        launch_heads<kTypeK, kLists>(p, part, workspace, stream);
    } else {
        launch_lanes<kTypeK, kTypeV, 4, kLists>(p, part, workspace, stream);
    }
}

template <CellType kTypeK, bool kLists>
void launch_with(const AttendProblem & p, const AttendPart & part, const AttendWorkspace & workspace, Stream stream) {
    switch (p.v_type) {
        case CellType::f16: return launch_pair<kTypeK, CellType::f16, kLists>(p, part, workspace, stream);
        case CellType::q8_0: return launch_pair<kTypeK, CellType::q8_0, kLists>(p, part, workspace, stream);
        case CellType::q4_0: return launch_pair<kTypeK, CellType::q4_0, kLists>(p, part, workspace, stream);
    }
}

template <bool kLists>
void launch_types(const AttendProblem & p, const AttendPart & part, const AttendWorkspace & workspace, Stream stream) {
    switch (p.k_type) {
        case CellType::f16: return launch_with<CellType::f16, kLists>(p, part, workspace, stream);
        case CellType::q8_0: return launch_with<CellType::q8_0, kLists>(p, part, workspace, stream);
        case CellType::q4_0: return launch_with<CellType::q4_0, kLists>(p, part, workspace, stream);
    }
}

}  // namespace
}  // namespace edgekv::gpu
