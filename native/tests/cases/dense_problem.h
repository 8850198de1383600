// A problem without gaps, whose pointers the caller sets.
#pragma once

#include "cell_rows.h"
#include "kernels/decode/attend.h"

namespace test {

// Pages of 16 tokens, no mask, no results.
inline edgekv::AttendProblem dense_problem(int head_dim, int n_head, int n_head_kv, int n_tokens, int n_cells, CellType type) {
    edgekv::AttendProblem p{};
    p.head_dim = head_dim;
    p.n_head = n_head;
    p.n_head_kv = n_head_kv;
    p.n_tokens = n_tokens;
    p.n_cells = n_cells;
    p.page_tokens = 16;
    p.k_type = p.v_type = type;
    p.q_stride_head = p.out_stride_head = static_cast<size_t>(head_dim) * 4;
    p.q_stride_token = p.out_stride_token = p.q_stride_head * n_head;
    p.k_stride_head = p.v_stride_head = row_bytes(type, head_dim);
    p.k_stride_cell = p.v_stride_cell = p.k_stride_head * n_head_kv;
    p.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    return p;
}

}  // namespace test
