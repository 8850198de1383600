// The graph nodes of the host plane: store K and V and sketch them, select rows, attend, observe. They are several, because a node has no
// barrier inside: every thread that attends must see the rows that all of them stored and selected, and where every cell is attended, mass
// is known only when all have attended.
#pragma once

#include "state/state.h"
#include "kernels/prompt/prompt.h"
#include "plane/host/host_plane.h"

#include <cmath>

namespace edgekv {

// the node that fills the lists of `layer`; null: out of memory
ggml_tensor * build_select(HostLayer & layer, const llama_edgekv_attend & args);

// What selection takes for a run of tokens.
struct SelectBytes {
    size_t workspace, lists;
    size_t list_stride;  // the most rows of a list
};
SelectBytes select_bytes(const AttendProblem & problem, bool scans, int n_threads);

// the node that attends ubatches too long for the decode kernel; null: no kernel for these heads, or out of memory, as `served` then says
ggml_tensor * build_attend_prompt(HostLayer & layer, Layer & served, const llama_edgekv_attend & args);

enum AttendSource { ATTEND_Q, ATTEND_K, ATTEND_V, ATTEND_MASK, ATTEND_SINKS, ATTEND_SELECTED, ATTEND_SEEN, ATTEND_K_IDXS, N_ATTEND_SOURCES };

// too long for the decode kernel
inline bool is_long(const ggml_tensor * k, int64_t n_tokens) {
    return n_tokens%k->ne[3] != 0 || n_tokens/k->ne[3] > kMaxQueryTokens;
}

// the problem of one stream; tensors without data (while the graph is built) give null pointers, which only size the workspace
AttendProblem make_problem(const HostLayer & layer, const ggml_tensor * dst, int64_t s);

// The cells [first, end), at most 64, that a row of a mask lets its token see.
uint64_t visible_cells(MaskType type, const char * row, int first, int end);

// A scan of one KV head's sketches for queries that sketch_query_prepare() made ready.
struct HeadScan {
    const Sketch & sketch;
    const SketchKeys & keys;
    const SketchQuery & query;
    const char * prepared;
    int head;
};

// A group in which a token sees some cells and not the others: those are empty, of other sequences or of later tokens. A sketch may not be
// there, and is made of what the token does not see too.
inline bool sees_in_part(const Sight & sight) { return sight.visible != 0 && ~sight.visible != 0; }
inline bool sees_whole(const Sight & sight) { return ~sight.visible == 0; }

// Groups [first, end): by their sketches, and what a token sees in part by its keys.
void scan_groups(const HeadScan & scan, int first, int end, const Shares & out);

// Sparse prompts. sparse_prompt() says whether this ubatch is one, prompt_choice_bytes() what memory a thread needs for it behind what
// attention needs. choose_prompt_blocks() leaves the choice of one item in `problem.raise`, which lies in `memory`. k_idxs: the cells of
// the stream's tokens.
bool sparse_prompt(const HostPlane & plane, int n_cells);
size_t prompt_choice_bytes(const AttendProblem & problem);
void choose_prompt_blocks(HostLayer & layer, const int64_t * k_idxs, int stream, const PromptPlan & plan, int index, PromptProblem & problem,
                          char * memory);

inline size_t align64(size_t n) {
    return (n + 63)/64*64;
}

}  // namespace edgekv
