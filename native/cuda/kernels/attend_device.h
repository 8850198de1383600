// Decode attention over a paged view of the KV cache, on the device.
//
// The problem is the CPU plane's AttendProblem (attend.h) of one layer and one stream, with device addresses in it: q, mask,
// sinks, out, mass, rows, slots, hits lie in device memory, home (k and v) in pinned host memory or on the device.
// attend_reference() is the specification, with one difference: K in q8_0 meets the query in float, not a quantised one.
//
//   launch_attend        one part: some pages, divided among n_splits blocks per KV head, each of which leaves a partial softmax
//                        (max, sum, out) and the weights of its pages in the workspace
//   launch_attend_merge  all partials into `out`, then mass and hits
//   launch_attend_error  behind the merge, and before the workspace is used again: errors of the heads whose turn it is
//
// With lists of rows, one part walks all of them; a row lies in its page's slot, or is read where it is at home. Without lists the pages
// of a view may come in several parts, one behind the other (the ring is filled again between them); each has partials of its own, and
// one merge follows the last.
//
// Nothing is allocated, nothing waits. Launch shapes and arguments depend on the shapes in the problem only; how many rows a
// list has, and where pages lie, is read on the device. The workspace needs no preparation; what lies in it between a part and
// its merge must be left alone, so streams of one step share it only if each is merged before the next begins.
#pragma once

#include "kernels/attend/attend.h"
#include "kernels/device_sizes.h"
#include "cuda/gpu.h"

namespace edgekv::gpu {

constexpr int kMaxGroup = 16;  // query heads per KV head

// Pages [first_page, end_page) of every KV head, brought to the device for the moment: that of (head, page) lies at
// data + (head*(end_page - first_page) + page - first_page)*arena.slot_bytes, laid out like a slot of the arena, if `held` is
// not 0 at the same index. The arena comes before the ring, and the ring before home.
struct Ring {
    char * data;  // null: no ring
    int first_page, end_page;
    int n_heads;
    const uint8_t * held;  // [n_heads][end_page - first_page], device memory
};

// The part that one launch attends. Partials [first_partial, first_partial + n_splits) of the workspace are its own.
struct AttendPart {
    int first_page, end_page;  // without lists; with them not read
    int first_partial, n_splits;
    Ring ring;
    bool brought = false;  // k and v of the problem lie on the device: nothing is read over the link
};

// Whether the kernels serve these shapes; null pointers are not looked at, so a problem may be asked about while its graph is
// built. They ask for more than the CPU's: groups of at most kMaxGroup, rows of q and of f16 K and V on 16-byte boundaries
// (strides and, where not null, addresses), rows of q8_0 on 2-byte boundaries.
bool attend_device_supports(const AttendProblem & problem);

// attend_device_workspace_bytes() and attend_device_splits() (kernels/device_sizes.h) tell the workspace and n_splits.
// `n_partials`: of all parts of the problem, the same in every launch that shares the workspace.
void launch_attend(const AttendProblem & problem, const AttendPart & part, void * workspace, int n_partials, Stream stream);

// `first_page`, `end_page`: without lists, the pages that the parts covered together; with lists not read. Adds to mass and hits in the
// order of query tokens, one block for each page, so that a run repeats bit by bit.
void launch_attend_merge(const AttendProblem & problem, int first_page, int end_page, void * workspace, int n_partials, Stream stream);

// Adds to hits; V of the rows that came by chance is read once more. The heads' turns go by problem.error_turn and `n_ubatch`, in device
// memory, or null: 0. Nothing without lists, weights, hits or error_every.
void launch_attend_error(const AttendProblem & problem, const AttendPart & part, const void * workspace, int n_partials,
                         const uint32_t * n_ubatch, Stream stream);

}  // namespace edgekv::gpu
