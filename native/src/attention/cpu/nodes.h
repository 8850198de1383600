// The graph nodes of the host plane: one stores and sketches K and V, one selects rows, one attends, one observes. A node has no barrier
// inside, so each step is a separate node: a thread that attends must see the rows that all threads stored and selected, and the
// mass of all cells is known only after all threads have attended.
#pragma once

#include "state/state.h"
#include "kernels/prefill/prompt.h"
#include "attention/cpu/host_plane.h"

namespace edgekv {

// Builds the node that fills the lists of `layer`. Null: out of memory.
ggml_tensor * build_select(HostLayer & layer, const llama_edgekv_attend & args);

// Builds the node that lists the visible cells of args.top_k. listed_rows() returns the lists of a stream's tokens.
ggml_tensor * build_list(const llama_edgekv_attend & args);
AttendRows listed_rows(const ggml_tensor * list, int64_t stream);

// The memory that selection needs for a run of tokens.
struct SelectBytes {
    size_t workspace, sights, lists;
    size_t list_stride;  // the maximum number of rows in a list
};
// keeps: in mode evict
SelectBytes select_bytes(const AttendProblem & problem, bool scans, bool keeps, int n_threads);

// Builds the node that attends a ubatch too long for the decode kernel. Null: these heads have no kernel, or memory ran out; `served` says which.
ggml_tensor * build_attend_prompt(HostLayer & layer, Layer & served, const llama_edgekv_attend & args);

enum AttendSource {
    ATTEND_Q, ATTEND_K, ATTEND_V, ATTEND_MASK, ATTEND_SINKS, ATTEND_SELECTED, ATTEND_SEEN, ATTEND_K_IDXS, ATTEND_LISTED, N_ATTEND_SOURCES
};

// Whether a ubatch is too long for the decode kernel.
inline bool is_long(const ggml_tensor * k, int64_t n_tokens) { return n_tokens % k->ne[3] != 0 || n_tokens / k->ne[3] > kMaxQueryTokens; }

// The problem of one stream. While the graph is built, tensors have no data: the pointers are null, and the problem only sizes memory. The first
// function knows the tensors only: its problem observes nothing, and lacks the layer's scale and softcap.
AttendProblem make_problem(const ggml_tensor * dst, int64_t s, int page_tokens);
AttendProblem make_problem(const HostLayer & layer, const ggml_tensor * dst, int64_t s);

// Builds the node that classifies the blocks of a mask for prompts. Blocks start at cell 0, or at the first cell that any token of the stream sees.
// Layers that share the mask share the node.
enum class SeenFrom { cell_0, first_seen };
ggml_tensor * build_seen(HostPlane & plane, const llama_edgekv_attend & args, SeenFrom from);

// The first cell that any token of a stream sees; 0 if no token sees a cell.
int first_seen(const ggml_tensor * mask, int64_t stream);

// The problem of a stream with the classes of its mask, which build_seen()'s node wrote.
PromptProblem with_seen(const AttendProblem & problem, const ggml_tensor * dst, int64_t s);

// The visible ones of at most 64 cells [first, end), as bits, by a token's part of the mask.
uint64_t visible_cells(MaskType type, const char * token_mask, int first, int end);

// A scan of one KV head's sketches for queries that sketch_query_prepare() prepared.
struct HeadScan {
    const Sketch & sketch;
    const SketchKeys & keys;
    const SketchQuery & query;
    const char * prepared;
    int head;
};

// A token sees a group in part if its other cells are empty, or belong to other sequences or to later tokens. Such a group may have no sketch, or
// a sketch that includes cells hidden from the token.
inline bool sees_in_part(const Sight & sight) { return sight.visible != 0 && ~sight.visible != 0; }
inline bool sees_whole(const Sight & sight) { return ~sight.visible == 0; }

// Scans groups [first, end) by their sketches; a group that a token sees in part is scanned by its keys.
void scan_groups(const HeadScan & scan, int first, int end, const Shares & out);

// Sparse prompts. sparse_prompt() says whether this ubatch is one. prompt_choice_bytes() is a thread's memory for the choice, in addition to
// the memory for attention. choose_prompt_blocks() writes one item's choice to `problem.raise`, which lies in `memory`. k_idxs: the
// cells of the stream's tokens.
bool sparse_prompt(const HostPlane & plane, int n_cells);
size_t prompt_choice_bytes(const AttendProblem & problem);
void choose_prompt_blocks(HostLayer & layer, const int64_t * k_idxs, int stream, const PromptPlan & plan, int index, PromptProblem & problem,
                          char * memory);

}  // namespace edgekv
