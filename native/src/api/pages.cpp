// The C functions for pages: selection, page table and arena.
#include "api/guard.h"
#include "context/context.h"

#include "llama-edgekv-pinned.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

using namespace edgekv;

namespace edgekv {

edgekv_status check_selection(const edgekv_selection & s) {
    if (!(s.resolution >= 1.0f) || !std::isfinite(s.resolution)) {
        return fail(EDGEKV_INVALID, "the resolution of a selection must be a number from 1 on");
    }
    if (s.prompt_resolution != 0.0f && (!(s.prompt_resolution >= 1.0f) || !std::isfinite(s.prompt_resolution))) {
        return fail(EDGEKV_INVALID, "the resolution of prompts must be a number from 1 on, or 0");
    }
    if (s.exact_tokens < 0 || s.sink_tokens < 0 || s.recent_tokens < 0 || s.error_every < 0 || s.positions < 0 || s.keep_tokens < 0) {
        return fail(EDGEKV_INVALID, "the counts of a selection must not be negative");
    }
    return EDGEKV_OK;
}

}  // namespace edgekv

edgekv_status edgekv_set_selection(edgekv_context * ctx, const edgekv_selection * selection) {
    EDGEKV_TRY(check_thread(ctx));
    EDGEKV_TRY(check_selection(*selection));
    return guarded([&] { return told(ctx->set_selection(*selection)); });
}

edgekv_status edgekv_set_resolutions(edgekv_context * ctx, const float * resolutions, int n_layers, int n_heads) {
    EDGEKV_TRY(check_thread(ctx));
    const auto fits = [](float x) { return x == 0.0f || (x >= 1.0f && std::isfinite(x)); };
    const size_t n = resolutions ? static_cast<size_t>(ctx->shape.n_layers) * ctx->shape.n_heads : 0;
    if (resolutions && (n_layers != ctx->shape.n_layers || n_heads != ctx->shape.n_heads)) {
        return fail(EDGEKV_INVALID, "the resolutions are for " + std::to_string(n_layers) + " layers and " + std::to_string(n_heads) +
                                    " KV heads, but this context has " + std::to_string(ctx->shape.n_layers) + " and " +
                                    std::to_string(ctx->shape.n_heads));
    }
    if (!std::all_of(resolutions, resolutions + n, fits)) {
        return fail(EDGEKV_INVALID, "the resolution of a KV head must be a number from 1 on, or 0 for the selection's");
    }

    return guarded([&] {
        ctx->resolutions.assign(resolutions, resolutions + n);
        return EDGEKV_OK;
    });
}

bool edgekv_get_rope(const edgekv_context * ctx, int * n_rot, float * freq_base, float * freq_scale) {
    llama_edgekv_rope rope;
    const bool has = llama_edgekv_get_rope(ctx->lctx, &rope);
    *n_rot      = rope.n_rot;
    *freq_base  = rope.freq_base;
    *freq_scale = rope.freq_scale;
    return has;
}

edgekv_status edgekv_set_arena(edgekv_context * ctx, int n_slots) {
    if (n_slots < 0) {
        return fail(EDGEKV_INVALID, "an arena cannot have " + std::to_string(n_slots) + " slots");
    }

    return guarded([&] {
        const edgekv_status status = told(ctx->plane->set_slots(n_slots));
        if (status == EDGEKV_OK) {
            ctx->pages.table.set_slots(n_slots);
        }
        return status;
    });
}

edgekv_status edgekv_set_hot_rows(edgekv_context * ctx, size_t n_bytes) {
    return guarded([&] { return told(ctx->plane->set_hot_rows(n_bytes)); });
}

edgekv_status edgekv_get_page_arrays(const edgekv_context * ctx, edgekv_page_arrays * out) {
    const PageArrays arrays = ctx->plane->arrays();
    const Table &    table  = ctx->pages.table;

    *out = { table.data(), ctx->pages.cells.newest(), arrays.dropped,
             ctx->shape.n_layers, ctx->shape.n_heads, ctx->shape.n_pages, table.n_slots(), ctx->shape.slot_bytes };
    return EDGEKV_OK;
}

edgekv_status edgekv_set_pins(edgekv_context * ctx, const edgekv_span * spans, int n) {
    EDGEKV_TRY(check_thread(ctx));
    const int n_seq = static_cast<int>(llama_n_seq_max(ctx->lctx));
    for (int i = 0; i < n; ++i) {
        if (spans[i].seq_id < 0 || spans[i].seq_id >= n_seq || spans[i].first < 0 || spans[i].last < spans[i].first) {
            return fail(EDGEKV_INVALID, "sequence " + std::to_string(spans[i].seq_id) + " has no positions " + std::to_string(spans[i].first) +
                                        " to " + std::to_string(spans[i].last));
        }
    }
    return guarded([&] { return ctx->pages.pins.set(spans, n), EDGEKV_OK; });
}

void edgekv_get_selected(const edgekv_context * ctx, int sequence, edgekv_selected * out) {
    std::memset(out, 0, sizeof(*out) * ctx->shape.n_layers * ctx->shape.n_heads);
    if (sequence < static_cast<int>(llama_n_seq_max(ctx->lctx))) {
        ctx->plane->add_selected(out, sequence);
    }
}

namespace {

edgekv_status check_moves(const edgekv_context * ctx, const edgekv_move * moves, int n, bool slots) {
    const auto exists = [&](const edgekv_move & move) {
        return ctx->shape.has(move.layer, move.head, move.page) &&
               (!slots || (move.head < ctx->hooked[move.layer]->info.n_head_kv && move.slot >= 0 && move.slot < ctx->pages.table.n_slots()));
    };
    for (int i = 0; i < n; ++i) {
        if (!exists(moves[i])) {
            return fail(EDGEKV_INVALID, "move " + std::to_string(i) + " names a page or a slot that does not exist");
        }
    }
    return EDGEKV_OK;
}

// Calls act(i) for each move, if every move names an existing page and slot.
template <class Act>
edgekv_status for_each_move(const edgekv_context * ctx, const edgekv_move * moves, int n, bool slots, Act act) {
    const edgekv_status status = check_moves(ctx, moves, n, slots);
    for (int i = 0; status == EDGEKV_OK && i < n; ++i) {
        act(i);
    }
    return status;
}

}  // namespace

edgekv_status edgekv_begin_copies(edgekv_context * ctx, const edgekv_move * moves, int n) {
    EDGEKV_TRY(check_moves(ctx, moves, n, true));
    const PageShape & shape = ctx->shape;
    for (int i = 0; i < n; ++i) {  // a kernel that reads what is not pinned ends the process, and NumPy reads it
        const auto [stream, page] = std::div(moves[i].page, shape.pages_per_stream);
        const int end = std::min((page + 1) * shape.page_tokens, shape.n_cells);
        if (!llama_edgekv_is_reached(ctx->lctx, static_cast<uint32_t>(stream), static_cast<uint32_t>(end))) {
            return fail(EDGEKV_NOT_PINNED, "page " + std::to_string(moves[i].page) + " has rows that the device cannot read");
        }
    }
    return for_each_move(ctx, moves, n, true, [&](int i) { ctx->pages.table.copied(moves[i], ctx->pages.cells); });
}

edgekv_status edgekv_fill_pages(edgekv_context * ctx, const edgekv_move * moves, int n) {
    if (!ctx->plane->brings_pages()) {
        return fail(EDGEKV_UNSUPPORTED, "prompts bring pages to a device; this context has none");
    }
    EDGEKV_TRY(check_moves(ctx, moves, n, true));

    return guarded([&] {
        ctx->pages.table.fill(moves, n, ctx->pages.cells);
        return EDGEKV_OK;
    });
}

edgekv_status edgekv_filled_pages(const edgekv_context * ctx, const edgekv_move * moves, int n, bool * over, bool * filled) {
    return for_each_move(ctx, moves, n, true, [&](int i) {
        over[i]   = ctx->pages.table.is_over(moves[i]);
        filled[i] = ctx->pages.table.is_filled(moves[i]);
    });
}

edgekv_status edgekv_publish_pages(edgekv_context * ctx, const edgekv_move * moves, int n, bool * ok) {
    return for_each_move(ctx, moves, n, true, [&](int i) { ok[i] = ctx->pages.table.publish(ctx->lctx, moves[i], ctx->pages.cells); });
}

edgekv_status edgekv_release_pages(edgekv_context * ctx, const edgekv_move * moves, int n) {
    return for_each_move(ctx, moves, n, false, [&](int i) { ctx->pages.table.release(moves[i]); });
}

edgekv_status edgekv_drop_pages(edgekv_context * ctx, const edgekv_move * moves, int n) {
    EDGEKV_TRY(check_moves(ctx, moves, n, false));
    return guarded([&] { return told(ctx->plane->drop_pages(moves, n)); });
}

edgekv_status edgekv_free_pages(edgekv_context * ctx, const int32_t * pages, int n, int * n_cells) {
    std::vector<uint32_t> cells(ctx->params.page_tokens);

    *n_cells = 0;
    for (int i = 0; i < n; ++i) {
        if (pages[i] < 0 || pages[i] >= ctx->shape.n_pages) {
            return fail(EDGEKV_INVALID, "there is no page " + std::to_string(pages[i]));
        }
        for (size_t c = 0; c < cells.size(); ++c) {
            cells[c] = static_cast<uint32_t>(pages[i] % ctx->shape.pages_per_stream * ctx->params.page_tokens + c);
        }
        *n_cells += llama_edgekv_free_cells(ctx->lctx, static_cast<uint32_t>(pages[i] / ctx->shape.pages_per_stream), cells.data(),
                                            static_cast<int>(cells.size()));
    }
    return EDGEKV_OK;
}

edgekv_status edgekv_free_cells(edgekv_context * ctx, const int32_t * cells, int n, int * n_cells) {
    const int per_stream = ctx->shape.pages_per_stream * ctx->params.page_tokens;
    std::vector<std::vector<uint32_t>> of_stream(ctx->shape.n_stream);

    *n_cells = 0;
    for (int i = 0; i < n; ++i) {
        if (cells[i] < 0 || cells[i] >= per_stream * ctx->shape.n_stream) {
            return fail(EDGEKV_INVALID, "there is no cell " + std::to_string(cells[i]));
        }
        of_stream[cells[i] / per_stream].push_back(static_cast<uint32_t>(cells[i] % per_stream));
    }
    for (int s = 0; s < ctx->shape.n_stream; ++s) {
        *n_cells += llama_edgekv_free_cells(ctx->lctx, static_cast<uint32_t>(s), of_stream[s].data(), static_cast<int>(of_stream[s].size()));
    }
    return EDGEKV_OK;
}

edgekv_limits edgekv_get_limits(const edgekv_context * ctx) {
    return { static_cast<int>(llama_n_ctx_seq(ctx->lctx)), static_cast<int>(llama_n_seq_max(ctx->lctx)),
             static_cast<int>(llama_n_batch(ctx->lctx)), static_cast<int>(llama_n_ubatch(ctx->lctx)), llama_edgekv_closes_gaps(ctx->lctx),
             ctx->bound, ctx->plane->gives_back() };
}

edgekv_status edgekv_last_rows(const edgekv_context * ctx, int layer, int head, int token, int32_t * cells, float * weights, int capacity,
                               int * n_rows) {
    const Layer * asked = layer >= 0 && layer < ctx->shape.n_layers ? ctx->hooked[layer] : nullptr;
    if (!asked || head < 0 || head >= asked->info.n_head_kv || token < 0 || token >= kMaxQueryTokens) {
        return fail(EDGEKV_INVALID, "there is no query token " + std::to_string(token) + " of KV head " + std::to_string(head) +
                                    " in layer " + std::to_string(layer));
    }
    if (!n_rows || capacity < 0 || (capacity > 0 && (!cells || !weights))) {
        return fail(EDGEKV_INVALID, "edgekv_last_rows needs a place for the number of rows, and for as many rows and weights as its capacity");
    }

    const RowsRead list = ctx->params.selection.keep_rows ? ctx->plane->last_rows(*asked, head, token) : RowsRead{};
    *n_rows = list.n_rows;
    for (int i = 0; list.cells && i < std::min(list.n_rows, capacity); ++i) {
        cells[i]   = list.cells[i];
        weights[i] = list.weights ? list.weights[i] : 1.0f;
    }
    return EDGEKV_OK;
}
