// Dispatch and workspace layout. The last thread of a run that attends every cell merges the partial softmaxes.
#include "kernels/decode/attend.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <iterator>

#include "kernels/decode/attend_internal.h"
#include "kernels/simd/isa_dispatch.h"
#include "kernels/simd/subnormals.h"

namespace edgekv {
namespace {

AttendPlan make_plan(const AttendProblem & p, int n_threads) {
    AttendPlan plan{};
    plan.n_threads = n_threads;
    plan.group = p.n_head / p.n_head_kv;
    plan.queries_per_kv = plan.group * p.n_tokens;
    plan.n_queries = plan.queries_per_kv * p.n_head_kv;
    plan.n_strips = (p.n_cells + kStripCells - 1) / kStripCells;

    // Large tiles cost less. Small ones serve when large ones are too few for the threads to share evenly.
    plan.tile_strips = kTileStrips;
    const auto units = [&] { return (plan.n_strips + plan.tile_strips - 1) / plan.tile_strips * p.n_head_kv; };
    while (n_threads > 1 && plan.tile_strips > 1 && units() < 8 * n_threads) {
        plan.tile_strips /= 2;
    }
    plan.n_tiles = (plan.n_strips + plan.tile_strips - 1) / plan.tile_strips;

    const size_t queries = static_cast<size_t>(plan.n_queries);
    const size_t head_dim = static_cast<size_t>(p.head_dim);
    const size_t acc_bytes = align64(static_cast<size_t>(attend_v_dim(p)) * sizeof(float));
    plan.acc_stride = static_cast<int>(acc_bytes / sizeof(float));
    // has room for the quantised forms too; that against q4_0 has up to four blocks in a vector
    plan.prepared_bytes = (head_dim > 64 ? (head_dim + 127) / 128 * 128 : 64) * sizeof(float) + align64(head_dim / 32 * 8);
    plan.sum_offset = align64(queries * sizeof(float));
    plan.acc_offset = 2 * plan.sum_offset;
    plan.q_offset = plan.acc_offset + queries * acc_bytes;
    plan.partial_bytes = plan.q_offset + queries * plan.prepared_bytes;

    const int per_page = p.page_tokens / kStripCells;
    const size_t whole_pages = static_cast<size_t>((plan.n_strips + per_page - 1) / per_page * per_page);
    plan.strip_stride = align64(whole_pages * sizeof(float)) / sizeof(float);
    const bool observed = p.mass_max != nullptr || p.mass_sum != nullptr;
    plan.strip_sum_offset = kAttendHeaderBytes;
    plan.strip_max_offset = plan.strip_sum_offset + (observed ? queries * plan.strip_stride * sizeof(float) : 0);
    plan.final_offset = plan.strip_max_offset + (observed ? queries * plan.strip_stride * sizeof(float) : 0);
    plan.partial_offset = plan.final_offset + (observed ? align64(2 * queries * sizeof(float)) : 0);

    const size_t group = static_cast<size_t>(plan.group);
    plan.query_offset = kAttendHeaderBytes;
    plan.masses_offset = align64(group * plan.prepared_bytes);
    plan.mass_stride = static_cast<size_t>((p.n_cells + p.page_tokens - 1) / p.page_tokens + kStripCells - 1) / kStripCells * kStripCells;
    plan.query_bytes = plan.masses_offset + (observed ? align64(group * plan.mass_stride * sizeof(float)) : 0);
    plan.tile_offset = plan.query_offset + static_cast<size_t>(n_threads) * plan.query_bytes;
    plan.tile_weights = align64(2 * group * sizeof(float));
    plan.tile_acc = plan.tile_weights + align64(group * kTileCells * sizeof(float));
    plan.tile_bytes = plan.tile_acc + group * acc_bytes;
    return plan;
}

constexpr KernelTables<AttendKernels> kTables = EDGEKV_TABLES(kAttend);

const AttendKernels & kernels(Isa isa) { return kernels_for(isa, kTables); }

}  // namespace

size_t attend_workspace_bytes(const AttendProblem & problem, int n_threads) {
    const AttendPlan plan = make_plan(problem, n_threads);
    if (problem.rows.stride > 0) {
        const size_t n_lists = static_cast<size_t>(problem.n_tokens) * static_cast<size_t>(problem.n_head_kv);
        return plan.tile_offset + n_lists * ((problem.rows.stride + kTileCells - 1) / kTileCells) * plan.tile_bytes;
    }
    return plan.partial_offset + static_cast<size_t>(n_threads) * plan.partial_bytes;
}

void attend_run_with(const AttendKernels & kernels, const AttendProblem & problem, void * workspace, int ith, int nth) {
    assert(problem.v_in_k != 0 ? attend_supports_shared(problem.head_dim, problem.v_in_k, problem.k_type)
                               : attend_supports(problem.head_dim, problem.k_type, problem.v_type));
    static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the header is an array of counters");
    const SubnormalsAreZero fast;
    const AttendPlan plan = make_plan(problem, nth);
    char * bytes = static_cast<char *>(workspace);
    kernels.process(problem, plan, bytes, ith);

    auto * header = reinterpret_cast<std::atomic<uint32_t> *>(bytes);
    if (header[0].fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(nth)) {
        header[0].store(0, std::memory_order_relaxed);  // the caller's own barrier orders this before the next run
        header[1].store(0, std::memory_order_relaxed);
        kernels.finish(problem, plan, bytes);
    }
}

void attend_run(const AttendProblem & problem, void * workspace, int ith, int nth, Isa isa) {
    attend_run_with(kernels(isa), problem, workspace, ith, nth);
}

void attend_observe_with(const AttendKernels & kernels, const AttendProblem & problem, const void * workspace, int ith, int nth) {
    if (problem.rows.stride > 0) {
        return;
    }
    const SubnormalsAreZero fast;
    kernels.observe(problem, make_plan(problem, nth), static_cast<const char *>(workspace), ith);
}

void attend_observe(const AttendProblem & problem, const void * workspace, int ith, int nth, Isa isa) {
    attend_observe_with(kernels(isa), problem, workspace, ith, nth);
}

const AttendKernels * attend_kernels(const char * name) { return kernels_by_name(name, kTables); }

bool attend_supports(int head_dim, CellType k_type, CellType v_type) {
    constexpr int sizes[] = {64, 72, 80, 96, 112, 128, 192, 256, 512};
    const bool known = std::find(std::begin(sizes), std::end(sizes), head_dim) != std::end(sizes);
    return known && holds_row(k_type, head_dim) && holds_row(v_type, head_dim);
}

bool attend_supports(const AttendHeads & h) {
    if (h.n_head_kv < 1 || h.n_head_kv > kMaxHeadsKv || h.n_head % h.n_head_kv != 0 || h.n_head > kMaxGroup * h.n_head_kv) {
        return false;
    }
    return h.v_in_k ? attend_supports_shared(h.head_dim_k, h.head_dim_v, h.k_type)
                    : h.head_dim_k == h.head_dim_v && attend_supports(h.head_dim_k, h.k_type, h.v_type);
}

bool attend_supports_shared(int head_dim, int v_in_k, CellType type) {
    return head_dim <= kMaxHeadDim && head_dim % 8 == 0 && holds_row(type, head_dim) && v_in_k > 0 && v_in_k % 64 == 0 &&
           v_in_k < head_dim && v_in_k <= 512;
}

}  // namespace edgekv
