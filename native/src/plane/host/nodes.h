// The graph nodes of the host plane: one stores and sketches K and V, one selects rows, one attends, one observes. A node has no barrier
// inside, so each of these is a node of its own: every thread that attends must see the rows that all threads stored and selected, and the
// mass of all cells is known only when all threads have attended.
#pragma once

#include "state/state.h"
#include "kernels/prompt/prompt.h"
#include "plane/host/host_plane.h"

namespace edgekv {

// Makes the node that fills the lists of `layer`. Null: out of memory.
ggml_tensor * build_select(HostLayer & layer, const llama_edgekv_attend & args);

// Makes the node that lists the cells of args.top_k which the mask shows; listed_rows() are the lists of a stream's tokens.
ggml_tensor * build_list(const llama_edgekv_attend & args);
AttendRows listed_rows(const ggml_tensor * list, int64_t stream);

// What selection takes for a run of tokens.
struct SelectBytes {
    size_t workspace, sights, lists;
    size_t list_stride;  // the most rows of a list
};
SelectBytes select_bytes(const AttendProblem & problem, bool scans, int n_threads);

// Makes the node that attends a ubatch too long for the decode kernel. Null: these heads have no kernel, or memory is out, as `served` says.
ggml_tensor * build_attend_prompt(HostLayer & layer, Layer & served, const llama_edgekv_attend & args);

enum AttendSource {
    ATTEND_Q, ATTEND_K, ATTEND_V, ATTEND_MASK, ATTEND_SINKS, ATTEND_SELECTED, ATTEND_SEEN, ATTEND_K_IDXS, ATTEND_LISTED, N_ATTEND_SOURCES
};

// too long for the decode kernel
inline bool is_long(const ggml_tensor * k, int64_t n_tokens) { return n_tokens % k->ne[3] != 0 || n_tokens / k->ne[3] > kMaxQueryTokens; }

// The problem of one stream. While the graph is built tensors have no data; the pointers are then null and the problem only sizes memory. That
// of tensors alone observes nothing, and lacks what the graph was built with.
AttendProblem make_problem(const ggml_tensor * dst, int64_t s, int page_tokens);
AttendProblem make_problem(const HostLayer & layer, const ggml_tensor * dst, int64_t s);

// Makes the node that classifies the blocks of a mask for prompts, which begin with cell 0, or with the first that a token of the stream sees.
// Layers of a graph that share the mask share the node.
enum class SeenFrom { cell_0, first_seen };
ggml_tensor * build_seen(HostPlane & plane, const llama_edgekv_attend & args, SeenFrom from);

// The first cell that any token of a stream sees; 0 if none sees any.
int first_seen(const ggml_tensor * mask, int64_t stream);

// The problem of a stream with the classes of its mask, as build_seen() left them.
PromptProblem with_seen(const AttendProblem & problem, const ggml_tensor * dst, int64_t s);

// The cells [first, end), at most 64, that a token sees by its part of the mask.
uint64_t visible_cells(MaskType type, const char * token_mask, int first, int end);

// A scan of one KV head's sketches for queries that sketch_query_prepare() made ready.
struct HeadScan {
    const Sketch & sketch;
    const SketchKeys & keys;
    const SketchQuery & query;
    const char * prepared;
    int head;
};

// A token sees a group in part if the other cells are empty, of other sequences or of later tokens. Such a group may have no sketch, and if it
// has one, cells that the token does not see are part of it.
inline bool sees_in_part(const Sight & sight) { return sight.visible != 0 && ~sight.visible != 0; }
inline bool sees_whole(const Sight & sight) { return ~sight.visible == 0; }

// Scans groups [first, end) by their sketches, and those that a token sees in part by their keys.
void scan_groups(const HeadScan & scan, int first, int end, const Shares & out);

// Sparse prompts. sparse_prompt() says whether this ubatch is one. prompt_choice_bytes() is the memory that a thread needs for the choice
// besides that for attention. choose_prompt_blocks() leaves the choice of one item in `problem.raise`, which lies in `memory`. k_idxs: the
// cells of the stream's tokens.
bool sparse_prompt(const HostPlane & plane, int n_cells);
size_t prompt_choice_bytes(const AttendProblem & problem);
void choose_prompt_blocks(HostLayer & layer, const int64_t * k_idxs, int stream, const PromptPlan & plan, int index, PromptProblem & problem,
                          char * memory);

inline size_t align64(size_t n) { return (n + 63) / 64 * 64; }

}  // namespace edgekv
