// The C functions of edgekv.h about the memory hierarchy: selection, page table and arena.
#include "api_internal.h"
#include "context.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

using namespace edgekv;

namespace edgekv {

edgekv_status check_selection(const edgekv_selection & s) {
    if (s.sketch < EDGEKV_SKETCH_NONE || s.sketch > EDGEKV_SKETCH_B3) {
        return fail(EDGEKV_INVALID, "there is no sketch number " + std::to_string((int) s.sketch));
    }
    if (!(s.resolution >= 1.0f) || !std::isfinite(s.resolution)) {
        return fail(EDGEKV_INVALID, "the resolution of a selection must be a number from 1 on");
    }
    if (!(s.share >= 0.0f && s.share <= 1.0f)) {
        return fail(EDGEKV_INVALID, "the share of a selection must lie between 0 and 1");
    }
    if (!(s.prompt_coverage >= 0.0f && s.prompt_coverage <= 1.0f)) {
        return fail(EDGEKV_INVALID, "the coverage of prompts must lie between 0 and 1");
    }
    if (s.tokens < 0 || s.exact_tokens < 0 || s.sink_tokens < 0 || s.recent_tokens < 0 || s.error_every < 0 || s.keep_tokens < 0) {
        return fail(EDGEKV_INVALID, "the counts of a selection must not be negative");
    }

    return EDGEKV_OK;
}

}  // namespace edgekv

edgekv_status edgekv_set_selection(edgekv_context * ctx, const edgekv_selection * selection) {
    if (const edgekv_status status = check_thread(ctx); status != EDGEKV_OK) {
        return status;
    }
    if (const edgekv_status status = check_selection(*selection); status != EDGEKV_OK) {
        return status;
    }
    if (ctx->set_selection(*selection) != EDGEKV_OK) {
        return fail(EDGEKV_NO_MEMORY, ctx->plane ? ctx->plane_error() : "there is no memory for the sketches of this context");
    }

    return EDGEKV_OK;
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
    if (ctx->plane && !ctx->plane->set_slots(n_slots)) {
        return fail(EDGEKV_NO_MEMORY, ctx->plane_error());
    }
    if (!ctx->hierarchy.set_arena(n_slots)) {
        return fail(EDGEKV_NO_MEMORY, "there is no memory for an arena of " + std::to_string(n_slots*ctx->hierarchy.dims.slot_bytes) + " bytes");
    }

    return EDGEKV_OK;
}

edgekv_status edgekv_get_hierarchy(const edgekv_context * ctx, edgekv_hierarchy * out) {
    auto & tiers = const_cast<edgekv_context *>(ctx)->hierarchy;

    *out = { ctx->plane ? ctx->plane->priority() : tiers.priority(0, 0, 0), ctx->plane ? ctx->plane->pinned() : tiers.pinned(0, 0, 0),
             tiers.slots(0, 0, 0), tiers.newest(0), ctx->plane ? nullptr : tiers.dropped(0, 0, 0),
             ctx->n_rows, ctx->n_heads, ctx->n_pages, tiers.n_slots(), tiers.dims.slot_bytes };

    return EDGEKV_OK;
}

size_t edgekv_sketch_bytes(edgekv_sketch kind, int head_dim, int n_head_kv, int n_cells) {
    return sketch_bytes((SketchKind) kind, head_dim, n_head_kv, (n_cells + kGroupCells - 1)/kGroupCells);
}

void edgekv_get_selected(const edgekv_context * ctx, edgekv_selected * out) {
    std::memset(out, 0, sizeof(*out)*ctx->n_rows*ctx->n_heads);
    if (ctx->plane) {
        ctx->plane->selected(out, 0, ctx->n_rows);
        return;
    }
    for (const auto & layer : ctx->layers) {
        for (size_t i = 0; layer->info.row >= 0 && i < layer->hits.size(); ++i) {  // streams count apart
            const edgekv_selected & one  = layer->selected[i];
            const AttendHits &      hits = layer->hits[i];
            edgekv_selected &       sum  = out[(size_t) layer->info.row*ctx->n_heads + i%layer->info.n_head_kv];
            sum.n_tokens  += one.n_tokens;
            sum.n_visible += one.n_visible;
            sum.n_certain += one.n_certain;
            sum.n_read    += hits.n_read;
            sum.n_hits    += hits.n_hits;
            sum.mass      += hits.mass;
            sum.mass_hits += hits.mass_hits;
            sum.error     += hits.error;
            sum.n_errors  += hits.n_errors;
        }
    }
}

namespace {

edgekv_status check_moves(const edgekv_context * ctx, const edgekv_move * moves, int n, bool slots) {
    for (int i = 0; i < n; ++i) {
        const edgekv_move & move = moves[i];
        if (move.row < 0 || move.row >= ctx->n_rows || move.head < 0 || move.head >= ctx->n_heads || move.page < 0 ||
            move.page >= ctx->n_pages || (slots && (move.slot < 0 || move.slot >= ctx->hierarchy.n_slots()))) {
            return fail(EDGEKV_INVALID, "move " + std::to_string(i) + " names a page or a slot that does not exist");
        }
    }

    return EDGEKV_OK;
}

void copy_page(edgekv_context * ctx, const Layer & layer, const edgekv_move & move) {
    const int  stream = move.page/ctx->pages_per_stream;
    const int  first  = move.page%ctx->pages_per_stream*ctx->params.page_tokens;
    const int  end    = std::min(first + ctx->params.page_tokens, ctx->n_cells);
    const auto copy   = [&](const ggml_tensor * cache, int head_dim, char * dst) {
        const size_t row_bytes = ggml_row_size(cache->type, head_dim);
        const char * src = static_cast<const char *>(cache->data) + stream*cache->nb[2] + move.head*row_bytes;
        for (int c = first; c < end; ++c, dst += row_bytes) {
            std::memcpy(dst, src + c*cache->nb[1], row_bytes);
        }
    };

    char * slot = ctx->hierarchy.slot(move.slot);
    copy(layer.seam.k, layer.seam.head_dim_k, slot);
    copy(layer.seam.v, layer.seam.head_dim_v, slot + ctx->params.page_tokens*ggml_row_size(layer.seam.k->type, layer.seam.head_dim_k));
    ctx->hierarchy.copied(move);
}

}  // namespace

edgekv_status edgekv_copy_pages(edgekv_context * ctx, const edgekv_move * moves, int n) {
    if (const edgekv_status status = check_moves(ctx, moves, n, true); status != EDGEKV_OK) {
        return status;
    }
    if (ctx->plane) {
        return fail(EDGEKV_UNSUPPORTED, "on a device pages are copied by kernels of the caller's");
    }
    std::vector<const Layer *> layers(ctx->n_rows);
    for (const auto & layer : ctx->layers) {
        if (layer->info.row >= 0) {
            layers[layer->info.row] = layer.get();
        }
    }
    for (int i = 0; i < n; ++i) {
        if (moves[i].head < layers[moves[i].row]->info.n_head_kv) {
            copy_page(ctx, *layers[moves[i].row], moves[i]);
        }
    }

    return EDGEKV_OK;
}

edgekv_status edgekv_begin_copies(edgekv_context * ctx, const edgekv_move * moves, int n) {
    if (const edgekv_status status = check_moves(ctx, moves, n, true); status != EDGEKV_OK) {
        return status;
    }
    for (int i = 0; i < n; ++i) {
        ctx->hierarchy.copied(moves[i]);
    }

    return EDGEKV_OK;
}

edgekv_status edgekv_fill_pages(edgekv_context * ctx, const edgekv_move * moves, int n) {
    if (const edgekv_status status = check_moves(ctx, moves, n, true); status != EDGEKV_OK) {
        return status;
    }
    if (!ctx->plane) {
        return fail(EDGEKV_UNSUPPORTED, "prompts bring pages to a device; this context has none");
    }
    ctx->hierarchy.fill(moves, n);

    return EDGEKV_OK;
}

edgekv_status edgekv_filled_pages(const edgekv_context * ctx, const edgekv_move * moves, int n, bool * over, bool * filled) {
    if (const edgekv_status status = check_moves(ctx, moves, n, true); status != EDGEKV_OK) {
        return status;
    }
    for (int i = 0; i < n; ++i) {
        over[i]   = ctx->hierarchy.is_over(moves[i]);
        filled[i] = ctx->hierarchy.is_filled(moves[i]);
    }

    return EDGEKV_OK;
}

edgekv_status edgekv_publish_pages(edgekv_context * ctx, const edgekv_move * moves, int n, bool * ok) {
    if (const edgekv_status status = check_moves(ctx, moves, n, true); status != EDGEKV_OK) {
        return status;
    }
    for (int i = 0; i < n; ++i) {
        ok[i] = ctx->hierarchy.publish(ctx->lctx, moves[i]);
    }

    return EDGEKV_OK;
}

edgekv_status edgekv_release_pages(edgekv_context * ctx, const edgekv_move * moves, int n) {
    if (const edgekv_status status = check_moves(ctx, moves, n, false); status != EDGEKV_OK) {
        return status;
    }
    for (int i = 0; i < n; ++i) {
        ctx->hierarchy.release(moves[i]);
    }

    return EDGEKV_OK;
}

edgekv_status edgekv_drop_pages(edgekv_context * ctx, const edgekv_move * moves, int n) {
    if (const edgekv_status status = check_moves(ctx, moves, n, false); status != EDGEKV_OK) {
        return status;
    }
    if (ctx->plane) {
        return fail(EDGEKV_UNSUPPORTED, "on a device no pages are dropped");
    }
    for (int i = 0; i < n; ++i) {
        ctx->hierarchy.drop(moves[i]);
    }

    return EDGEKV_OK;
}

edgekv_status edgekv_free_pages(edgekv_context * ctx, const int32_t * pages, int n, int * n_cells) {
    std::vector<uint32_t> cells(ctx->params.page_tokens);

    *n_cells = 0;
    for (int i = 0; i < n; ++i) {
        if (pages[i] < 0 || pages[i] >= ctx->n_pages) {
            return fail(EDGEKV_INVALID, "there is no page " + std::to_string(pages[i]));
        }
        for (size_t c = 0; c < cells.size(); ++c) {
            cells[c] = (uint32_t) (pages[i]%ctx->pages_per_stream*ctx->params.page_tokens + c);
        }
        *n_cells += llama_edgekv_free_cells(ctx->lctx, (uint32_t) (pages[i]/ctx->pages_per_stream), cells.data(), (int) cells.size());
    }

    return EDGEKV_OK;
}

edgekv_limits edgekv_get_limits(const edgekv_context * ctx) {
    return { (int) llama_n_ctx_seq(ctx->lctx), (int) llama_n_seq_max(ctx->lctx), (int) llama_n_batch(ctx->lctx),
             (int) llama_n_ubatch(ctx->lctx) };
}

edgekv_status edgekv_last_rows(const edgekv_context * ctx, int row, int head, int token, int32_t * cells, float * weights, int capacity,
                               int * n_rows) {
    const Layer * layer = nullptr;
    for (const auto & other : ctx->layers) {
        layer = row >= 0 && other->info.row == row ? other.get() : layer;
    }
    if (!layer || head < 0 || head >= layer->info.n_head_kv || token < 0 || token >= kMaxQueryTokens) {
        return fail(EDGEKV_INVALID, "there is no query token " + std::to_string(token) + " of KV head " + std::to_string(head) +
                                    " in row " + std::to_string(row));
    }
    if (!n_rows || capacity < 0 || (capacity > 0 && (!cells || !weights))) {
        return fail(EDGEKV_INVALID, "edgekv_last_rows needs a place for the number of rows, and for as many rows and weights as its capacity");
    }

    const int        list   = token*layer->info.n_head_kv + head;
    const RowLists & lists  = layer->lists[0];
    const int32_t *  found  = nullptr;
    const float *    weigh  = nullptr;
    *n_rows = 0;
    if (!ctx->params.selection.keep_rows) {
        return EDGEKV_OK;
    }
    if (ctx->plane) {
        found = ctx->plane->last_rows(row, list, *n_rows, weigh);
    } else if (token < lists.n_tokens) {
        found   = reinterpret_cast<const int32_t *>(lists.cells.data()) + list*lists.stride;
        weigh   = ctx->sketches() ? reinterpret_cast<const float *>(lists.weights.data()) + list*lists.stride : nullptr;
        *n_rows = reinterpret_cast<const int32_t *>(lists.n_rows.data())[list];
    }
    for (int i = 0; found && i < std::min(*n_rows, capacity); ++i) {
        cells[i]   = found[i];
        weights[i] = weigh ? weigh[i] : 1.0f;
    }

    return EDGEKV_OK;
}
