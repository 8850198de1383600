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

// whether a token sees one of the cells [first, end), by its row of the mask
inline bool any_visible(const ggml_tensor * mask, const char * row, int first, int end) {
    if (mask->type == GGML_TYPE_F16) {
        const uint16_t * x = reinterpret_cast<const uint16_t *>(row);
        for (int c = first; c < end; ++c) {
            if (x[c] != 0xfc00) {
                return true;
            }
        }
    } else {
        const float * x = reinterpret_cast<const float *>(row);
        for (int c = first; c < end; ++c) {
            if (x[c] != -INFINITY) {
                return true;
            }
        }
    }

    return false;
}

}  // namespace edgekv
