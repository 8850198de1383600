// The C functions of edgekv_sizes.h.
#include "edgekv_sizes.h"

#include "cache/kept.h"
#include "cache/pages.h"
#include "attention/cuda/engine_sizes.h"
#include "attention/cpu/nodes.h"

#include <algorithm>
#include <climits>
#include <initializer_list>

using namespace edgekv;

namespace {

bool scans(const edgekv_layer_size & of) { return of.n_listed == 0 && of.mode != EDGEKV_MODE_EXACT && of.sketches; }

// The longest step's attention to all cells. Of the address for mass, only its presence matters.
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

PageShape page_shape(const edgekv_device_size & of) {
    PageShape shape = shape_of_cells(of.n_streams, of.n_cells, of.page_tokens);
    shape.n_layers = of.n_layers;
    for (const edgekv_device_heads * layer = of.layers; layer != of.layers + of.n_layers; ++layer) {
        shape.n_heads    = std::max(shape.n_heads, layer->n_head_kv);
        shape.slot_bytes = std::max(shape.slot_bytes, slot_bytes(layer->k_row_bytes + layer->v_row_bytes, of.page_tokens));
    }
    return shape;
}

EngineShape engine_shape(const edgekv_device_size & of, const PageShape & pages) {
    EngineShape shape = {};
    shape.n_heads          = pages.n_heads;
    shape.n_stream         = pages.n_stream;
    shape.n_cells          = pages.n_cells;
    shape.page_tokens      = pages.page_tokens;
    shape.pages_per_stream = pages.pages_per_stream;
    shape.n_pages          = pages.n_pages;
    shape.slot_bytes       = pages.slot_bytes;
    shape.budget_bytes     = of.budget_bytes;
    for (const edgekv_device_heads * layer = of.layers; layer != of.layers + of.n_layers; ++layer) {
        const auto type = [&](size_t row_bytes) {
            const auto has = [&](CellType of) { return row_bytes == static_cast<size_t>(bytes_of_row(of, layer->head_dim)); };
            return has(CellType::f16) ? CellType::f16 : has(CellType::q8_0) ? CellType::q8_0 : CellType::q4_0;
        };
        EngineLayer one = {};
        one.n_head    = layer->n_head;
        one.n_head_kv = layer->n_head_kv;
        one.head_dim  = layer->head_dim;
        one.k_type    = type(layer->k_row_bytes);
        one.v_type    = type(layer->v_row_bytes);
        shape.layers.push_back(one);
    }
    return shape;
}

// K and V of all cells of a staged piece, as DevicePlane::reserve_staging() has it.
size_t piece_bytes(const edgekv_device_size & of) {
    const size_t                n_cells = static_cast<size_t>(of.n_streams) * of.n_cells;
    const edgekv_device_heads * end     = of.layers + of.n_layers;
    const auto bytes = [](const edgekv_device_heads & layer) { return layer.n_head_kv * (layer.k_row_bytes + layer.v_row_bytes); };
    const edgekv_device_heads & widest = *std::max_element(of.layers, end, [&](const auto & a, const auto & b) { return bytes(a) < bytes(b); });
    const int n_pieces = engine_pieces(n_cells * bytes(widest), widest.n_head_kv);
    size_t    k = 0, v = 0;
    for (const edgekv_device_heads * layer = of.layers; layer != end; ++layer) {
        const size_t n = static_cast<size_t>(engine_piece_heads(layer->n_head_kv, n_pieces));
        k = std::max(k, n * layer->k_row_bytes);
        v = std::max(v, n * layer->v_row_bytes);
    }
    return n_cells * (k + v);
}

size_t buffers(std::initializer_list<size_t> n_bytes) {  // rounded as in DeviceBuffer
    size_t sum = 0;
    for (const size_t n : n_bytes) {
        sum += gpu::align256(n);
    }
    return sum;
}

// All layers use the workspace in turn.
size_t workspace_bytes(const edgekv_device_size & of, const EngineShape & shape, const EngineRing & ring) {
    EngineWorkspace most = {};
    const auto grow = [&](const EngineWorkspace & w) {
        for (const auto part : { &EngineWorkspace::shares, &EngineWorkspace::share_tops, &EngineWorkspace::share_sums, &EngineWorkspace::lists,
                                 &EngineWorkspace::list_weights, &EngineWorkspace::list_copies, &EngineWorkspace::list_lengths,
                                 &EngineWorkspace::sample_words, &EngineWorkspace::sights, &EngineWorkspace::attend }) {
            most.*part = std::max(most.*part, w.*part);
        }
    };
    for (int layer = 0; layer < of.n_layers; ++layer) {
        for (const EngineView & view : engine_widest(shape.n_stream, shape.n_cells)) {
            grow(engine_whole_workspace(shape, layer, view, ring, of.n_sm));
            if (of.mode == EDGEKV_MODE_SPARSE) {
                grow(engine_list_workspace(shape, layer, view, kTogetherBytes, of.n_sm));
            }
        }
    }
    return buffers({ most.shares, most.share_tops, most.share_sums, most.lists, most.list_weights, most.list_copies, most.list_lengths, most.sample_words,
                     most.sights, most.attend });
}

}  // namespace

size_t edgekv_table_bytes(const edgekv_pages_size * of) {
    PageShape shape = shape_of_cells(of->n_streams, of->n_cells, of->page_tokens);
    shape.n_layers = of->n_layers;
    shape.n_heads  = of->n_heads;
    return Pages::most_bytes(shape, of->n_slots) + Drops::bytes_of(shape) + Gone::bytes_of(shape) +
           HostPlane::observation_bytes(shape);
}

int edgekv_kept_cells(int n_cells, int keep_tokens, bool by_layer, int n_trained) {
    return kept_cells(n_cells, keep_tokens, by_layer, n_trained);
}

size_t edgekv_sketch_bytes(const edgekv_layer_size * of) {
    if (of->n_listed > 0 || !of->sketches) {
        return 0;
    }
    return sketch_bytes(of->head_dim, of->n_head_kv, (of->n_cells + kGroupCells - 1) / kGroupCells);
}

size_t edgekv_step_bytes(const edgekv_layer_size * of) {
    AttendProblem problem = problem_of(*of, true);
    if (of->n_listed > 0) {
        problem.rows.stride = std::min(of->n_listed, of->n_cells);
    }
    if (of->n_listed > 0 || of->mode == EDGEKV_MODE_EXACT) {
        return attend_workspace_bytes(problem, of->n_threads);
    }
    const SelectBytes select = select_bytes(problem, scans(*of), of->mode == EDGEKV_MODE_EVICT, of->n_threads);
    problem.rows.stride = select.list_stride;
    return select.workspace + select.sights + select.lists + attend_workspace_bytes(problem, of->n_threads);
}

// One thread's items are the longest.
size_t edgekv_prompt_bytes(const edgekv_layer_size * of) {
    if (of->v_in_k != 0 || of->n_listed > 0) {
        return 0;  // stock nodes read them
    }
    const AttendProblem problem = problem_of(*of, of->mode != EDGEKV_MODE_EXACT);
    return of->n_threads * (align64(prompt_plan(problem, 1).scratch_bytes) + (scans(*of) && of->mode == EDGEKV_MODE_SPARSE ? prompt_choice_bytes(problem) : 0));
}

size_t edgekv_slot_bytes(size_t row_bytes, int page_tokens) { return slot_bytes(row_bytes, page_tokens); }

int edgekv_piece_heads(size_t layer_bytes, int n_head_kv) { return engine_piece_heads(n_head_kv, engine_pieces(layer_bytes, n_head_kv)); }

size_t edgekv_device_margin(size_t total_bytes, bool has_display) { return device_margin(total_bytes, has_display); }

void edgekv_get_device_bytes(const edgekv_device_size * of, edgekv_device_bytes * out) {
    const size_t margin = device_margin(of->total_bytes, of->has_display) + of->later_bytes;
    *out = {};
    out->budget = of->budget_bytes ? of->budget_bytes : of->free_bytes > margin ? of->free_bytes - margin : 0;
    if (of->n_layers == 0) {
        return;
    }

    const PageShape    pages  = page_shape(*of);
    const EngineShape  shape  = engine_shape(*of, pages);
    const EngineTables tables = engine_tables(shape);
    const size_t       piece  = piece_bytes(*of);
    out->n_staged = engine_staged(piece, of->budget_bytes, of->free_bytes);
    out->staging  = out->n_staged * piece;
    out->tables   = buffers({ tables.mirrors, tables.mass });
    out->scratch  = buffers({ tables.layers, tables.totals, tables.hits, tables.tickets, tables.step, tables.stale, tables.fresh, tables.brought,
                              tables.updates, tables.updates });

    EngineRing ring = {};
    if (of->mode == EDGEKV_MODE_SPARSE) {
        for (int i = 0; i < of->n_layers; ++i) {
            out->sketches += buffers({ engine_sketch_stream_bytes(shape, i) * shape.n_stream });
        }
    } else {
        const size_t taken = out->staging + out->tables + out->scratch;  // allocated before the ring
        ring      = engine_ring(shape, of->free_bytes > taken ? of->free_bytes - taken : 0);
        ring      = { gpu::align256(ring.pages), gpu::align256(ring.held) };
        out->ring = ring.pages + ring.held;
    }
    out->scratch += workspace_bytes(*of, shape, ring);

    const size_t fixed = out->sketches + out->tables + out->scratch + out->staging + out->ring;
    if (fixed < out->budget) {
        const EngineArena arena = engine_arena(shape, out->budget - fixed, INT_MAX, Table::n_tail_slots(pages, kEngineTokens));
        out->arena   = arena.bytes(shape.slot_bytes);
        out->n_slots = arena.n_slots;
    }
}
