// Decode attention over a paged view of the KV cache, on the device.
//
// The problem is the CPU plane's AttendProblem (attend.h) of one layer and one stream with device addresses: q, mask,
// sinks, out, mass, rows, slots, hits lie in device memory, home (k and v) in pinned host memory or on the device.
// attend_reference() is the specification, with one difference: K in q8_0 meets a float query here, not a quantised one.
//
//   launch_attend        one part: some pages, divided among n_splits blocks per KV head; each block leaves a partial softmax
//                        (max, sum, out) and the weights of its pages in the workspace
//   launch_attend_merge  merges all partials into `out`, adds mass and hits, and estimates errors of the heads whose turn it is
//
// With lists of rows, one part walks all lists; each row is read from its page's slot, or else from home. Without lists the pages
// of a view may come in several parts, one after the other (the ring is refilled between them); each part has partials of its own, and
// one merge follows the last.
//
// Nothing allocates or waits. Launch shapes and arguments depend only on the shapes in the problem; the kernels read the lists'
// lengths and the pages' places on the device. The workspace needs no preparation. It must stay untouched between a part and
// its merge, so streams of one step share it only if each is merged before the next begins.
#pragma once

#include "kernels/decode/attend.h"
#include "kernels/device_sizes.h"
#include "cuda/gpu.h"

namespace edgekv::gpu {

constexpr int kMaxGroup = 16;  // query heads per KV head

// Pages [first_page, end_page) of every KV head, copied to the device for the moment. Page `page` of `head` lies at
// data + (head*(end_page - first_page) + page - first_page)*arena.slot_bytes, laid out like a slot of the arena, if `held` is
// not 0 at the same index. Kernels look in the arena first, then in the ring, then at home.
struct Ring {
    char * data;  // null: no ring
    int first_page, end_page;
    int n_heads;
    const uint8_t * held;  // [n_heads][end_page - first_page], device memory
};

// The part that one launch attends. Partials [first_partial, first_partial + n_splits) of the workspace are its own.
struct AttendPart {
    int first_page, end_page;  // read only without lists
    int first_partial, n_splits;
    Ring ring;
    bool brought = false;  // k and v of the problem lie on the device: nothing is read over the link
    // of a merge, read only where errors are estimated, or several tokens have lists
    uint32_t * tickets = nullptr;         // device memory, one for each KV head: zeros, and zeros again behind each merge
    const uint32_t * n_ubatch = nullptr;  // device memory; null: 0. With problem.error_turn it decides which heads have their turn
    int n_page_blocks = 0;                // for the pages of a KV head's lists; 0: page_blocks()
};

// Whether the kernels serve these shapes. Null pointers are ignored, so the question can be asked while the graph is
// built. The device needs more than the CPU: groups of at most kMaxGroup, rows of q and of f16 K and V on 16-byte boundaries
// (strides, and addresses that are not null), rows of q8_0 on 2-byte boundaries.
bool attend_device_supports(const AttendProblem & problem);

// attend_device_workspace_bytes() and attend_device_splits() (kernels/device_sizes.h) give the workspace's size and n_splits.
// `n_partials`: the partials of all parts together, the same in every launch that shares the workspace.
void launch_attend(const AttendProblem & problem, const AttendPart & part, void * workspace, int n_partials, Stream stream);

// `part` stands for all parts: its pages are those that they covered, read only without lists. Adds to mass and hits in the order of query tokens, one
// block for each page, so that a repeated run gives the same bits. An estimate of errors adds to hits, and reads V of the sampled rows once more; there
// is none without lists, weights, hits or error_every.
void launch_attend_merge(const AttendProblem & problem, const AttendPart & part, void * workspace, int n_partials, Stream stream);

}  // namespace edgekv::gpu
