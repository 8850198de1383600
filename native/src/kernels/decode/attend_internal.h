// attend.cpp shares this with the kernels by instruction set: the layout of the workspace and the kernel table. It holds only declarations and
// plain data, because the linker would merge inline functions compiled for several instruction sets.
#pragma once

#include "kernels/decode/attend.h"

namespace edgekv {

// Cells are processed in strips of 16 and tiles of up to 4 strips. A strip is addressed by its own base pointers, so that
// strips need not be consecutive in memory.
constexpr int kStripCells = 16;
constexpr int kTileStrips = 4;
constexpr int kTileCells = kStripCells * kTileStrips;

// The header counts the threads that are done, the next tile of a list and, from kArrivals on, the tiles done of each KV head.
constexpr int kArrivals = 16;  // uint32

// The same on every thread of a run. Query (kv head h, token t, head g of the group) has index h*queries_per_kv + t*group + g.
struct AttendPlan {
    int group;
    int queries_per_kv;
    int n_queries;
    int n_strips;
    int tile_strips;
    int n_tiles;
    int n_threads;
    int acc_stride;  // floats of an output accumulator: head_dim in whole vectors

    // Per thread: running max and sum [n_queries], output accumulators [n_queries][acc_stride], prepared queries [n_queries].
    size_t partial_offset, partial_bytes;
    size_t sum_offset, acc_offset, q_offset;  // within a partial; the max comes first
    size_t prepared_bytes;

    // Per query and strip, if mass is observed: the sum of the weights, and the running max to which they are relative.
    size_t strip_sum_offset, strip_max_offset;
    size_t strip_stride;  // floats per query
    size_t final_offset;  // per query, if mass is observed: the merge leaves the final max and 1 / sum there

    // With lists of rows another layout follows the header. Each thread has the prepared queries of a head, and the masses of a list by query
    // head and page. Each tile of 64 rows has its largest logits and sums [group], weights [group][64] and sums over V.
    size_t query_offset, query_bytes, masses_offset;
    size_t mass_stride;  // floats per query head
    size_t tile_offset, tile_bytes, tile_weights, tile_acc;
};

struct AttendKernels {
    void (*process)(const AttendProblem & problem, const AttendPlan & plan, char * workspace, int ith);
    void (*finish)(const AttendProblem & problem, const AttendPlan & plan, char * workspace);
    void (*observe)(const AttendProblem & problem, const AttendPlan & plan, const char * workspace, int ith);
};

extern const AttendKernels kAttendPortable;
extern const AttendKernels kAttendAvx2;
extern const AttendKernels kAttendAvxVnni;
extern const AttendKernels kAttendAvx512;
extern const AttendKernels kAttendAvx512Vnni;
extern const AttendKernels kAttendNeon;
extern const AttendKernels kAttendDotProd;

// By name, "avxvnni" apart from "avx2" and "avx512vnni" from "avx512", "dotprod" from "neon"; null if not compiled in or not usable on this CPU.
const AttendKernels * attend_kernels(const char * name);

void attend_run_with(const AttendKernels & kernels, const AttendProblem & problem, void * workspace, int ith, int nth);
void attend_observe_with(const AttendKernels & kernels, const AttendProblem & problem, const void * workspace, int ith, int nth);

}  // namespace edgekv
