// The C functions of edgekv_sizes.h.
#include "edgekv_sizes.h"

#include "pages/pages.h"
#include "plane/host/nodes.h"

#include <algorithm>

using namespace edgekv;

namespace {

bool scans(const edgekv_layer_size & of) { return of.n_listed == 0 && of.mode == EDGEKV_MODE_SPARSE && of.sketch != EDGEKV_SKETCH_NONE; }

// Attention of the longest step to all cells. Only whether there is an address for mass counts.
AttendProblem problem_of(const edgekv_layer_size & of, bool observed) {
    static float mass;

    AttendProblem p = {};
    p.head_dim    = of.head_dim;
    p.v_in_k      = of.v_in_k;
    p.n_head      = of.n_head;
    p.n_head_kv   = of.n_head_kv;
    p.n_tokens    = kMaxQueryTokens;
    p.n_cells     = of.n_cells;
    p.page_tokens = of.page_tokens;
    p.mass_max = p.mass_sum = observed ? &mass : nullptr;
    return p;
}

}  // namespace

size_t edgekv_table_bytes(const edgekv_pages_size * of) {
    PageShape shape = shape_of_cells(of->n_streams, of->n_cells, of->page_tokens);
    shape.n_layers = of->n_layers;
    shape.n_heads  = of->n_heads;
    return Pages::most_bytes(shape, of->n_slots) + Drops::bytes_of(shape) + HostPlane::priority_bytes(shape) +
           HostPlane::observation_bytes(shape);
}

bool edgekv_serves_heads(int n_head, int n_head_kv, int head_dim_k, int head_dim_v, bool v_in_k) {
    return attend_supports({ n_head, n_head_kv, head_dim_k, head_dim_v, v_in_k, CellType::f16, CellType::f16 });
}

size_t edgekv_sketch_bytes(const edgekv_layer_size * of) {
    if (of->n_listed > 0) {
        return 0;
    }
    return sketch_bytes(static_cast<SketchKind>(of->sketch), of->head_dim, of->n_head_kv, (of->n_cells + kGroupCells - 1) / kGroupCells);
}

size_t edgekv_step_bytes(const edgekv_layer_size * of) {
    AttendProblem problem = problem_of(*of, true);
    if (of->n_listed > 0) {
        problem.rows.stride = std::min(of->n_listed, of->n_cells);
    }
    if (of->n_listed > 0 || of->mode == EDGEKV_MODE_EXACT) {
        return attend_workspace_bytes(problem, of->n_threads);
    }
    const SelectBytes select = select_bytes(problem, scans(*of), of->n_threads);
    problem.rows.stride = select.list_stride;
    return select.workspace + select.sights + select.lists + attend_workspace_bytes(problem, of->n_threads);
}

// One thread's items are the longest.
size_t edgekv_prompt_bytes(const edgekv_layer_size * of) {
    if (of->v_in_k != 0 || of->n_listed > 0) {
        return 0;  // stock nodes read them
    }
    const AttendProblem problem = problem_of(*of, of->mode != EDGEKV_MODE_EXACT);
    return of->n_threads * (align64(prompt_plan(problem, 1).scratch_bytes) + (scans(*of) ? prompt_choice_bytes(problem) : 0));
}

size_t edgekv_slot_bytes(size_t row_bytes, int page_tokens) { return slot_bytes(row_bytes, page_tokens); }
