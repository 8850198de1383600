// What the files that build attention nodes share.
#pragma once

#include "nodes.h"

#include <cmath>

namespace edgekv {

enum AttendSource { ATTEND_Q, ATTEND_K, ATTEND_V, ATTEND_MASK, ATTEND_SINKS, ATTEND_SELECTED, N_ATTEND_SOURCES };

// the problem of one stream; tensors without data (while the graph is built) give null pointers, which only size the workspace
AttendProblem make_problem(const Layer & layer, const ggml_tensor * dst, int64_t s);

// the node that follows its attend node: turns what that left in the workspace into attention mass
ggml_tensor * build_observe(Layer & layer, const llama_edgekv_attend & args, ggml_tensor * attend);

inline size_t align64(size_t n) {
    return (n + 63)/64*64;
}

// What a token sees of the cells of a view, by its row of the mask; nothing is certain.
void find_visible(const ggml_tensor * mask, const char * row, int n_cells, Sight * sight);

// Mode evict: the visible cells of the pages that a head has not dropped, ascending; returns their number.
int list_kept(edgekv_context & ctx, const Layer & layer, const Sight * sight, int stream, int head, int n_cells, int32_t * cells, int & n_visible);

}  // namespace edgekv
