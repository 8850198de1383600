// The C functions of edgekv_testing.h.
#include "edgekv_testing.h"

#include "api/guard.h"
#include "context/context.h"
#include "cache/sketches.h"
#include "attention/cpu/product_nodes.h"

#include <cstring>
#include <vector>

using namespace edgekv;

namespace {

// Whether a slot's copy of a page equals home in all cells that hold tokens.
bool same_page(const edgekv_context * ctx, const Layer & layer, int head, int page, const char * copy) {
    const PageShape &   shape  = ctx->shape;
    const ggml_tensor * k      = layer.llama.k;
    const ggml_tensor * v      = layer.llama.v;
    const size_t        k_row  = layer.k_row_bytes();
    const size_t        v_row  = layer.v_row_bytes();
    const int           stream = page / shape.pages_per_stream;
    const int           first  = page % shape.pages_per_stream * shape.page_tokens;

    llama_edgekv_cells cells;
    const bool known = llama_edgekv_get_cells(ctx->lctx, static_cast<uint32_t>(stream), &cells);
    for (int i = 0; i < shape.page_tokens && first + i < shape.n_cells; ++i) {
        if (known && cells.pos[first + i] < 0) {
            continue;  // the cell is empty, whatever bytes it has
        }
        const char * home_k = static_cast<const char *>(k->data) + stream * k->nb[2] + (first + i) * k->nb[1] + head * k_row;
        if (std::memcmp(copy + i * k_row, home_k, k_row) != 0) {
            return false;
        }
        if (!v) {
            continue;  // V is part of K's rows
        }
        const char * home_v = static_cast<const char *>(v->data) + stream * v->nb[2] + (first + i) * v->nb[1] + head * v_row;
        if (std::memcmp(copy + shape.page_tokens * k_row + i * v_row, home_v, v_row) != 0) {
            return false;
        }
    }
    return true;
}

void check_sketches(const edgekv_context * ctx, const Layer & layer, edgekv_check_result & out) {
    const ggml_tensor * k = layer.llama.k;
    std::vector<std::vector<char>> copies(ctx->shape.n_stream);
    std::vector<Sketch>            own;
    std::vector<SketchKeys>        keys;
    for (int s = 0; s < ctx->shape.n_stream; ++s) {
        own.push_back(ctx->plane->sketch(layer, s, copies[s]));
        keys.push_back({ cell_type(k), static_cast<const char *>(k->data) + s * k->nb[2], k->nb[1], layer.k_row_bytes() });
    }
    const auto gone = [&](int page) { return ctx->plane->gave_back(layer.info.index, page); };
    out.n_groups_wrong += count_wrong_sketches(ctx->lctx, ctx->shape, ctx->pages.cells, ctx->pages.stale, own, keys, gone, out.n_groups);
}

}  // namespace

edgekv_check_result edgekv_check(const edgekv_context * ctx) {
    edgekv_check_result out = {};
    std::vector<char>   copy;
    for (const Layer * layer : ctx->hooked) {
        check_sketches(ctx, *layer, out);
        for (int head = 0; head < layer->info.n_head_kv; ++head) {
            for (int page = 0; page < ctx->shape.n_pages; ++page) {
                const int slot = ctx->pages.table.slots(layer->info.index, 0, head)[page];
                if (slot >= 0) {
                    out.n_slots       += 1;
                    out.n_slots_wrong += !same_page(ctx, *layer, head, page, ctx->plane->slot(slot, copy));
                }
            }
        }
    }
    return out;
}

void edgekv_leave_whole_layers(edgekv_context * ctx) {
    for (const auto & layer : ctx->layers) {
        if (layer->whole()) {
            layer->leave_whole();
        }
    }
    llama_edgekv_invalidate_graph(ctx->lctx);
}

void edgekv_throw_in(int n) { throw_in_guarded(n); }

int64_t edgekv_use_products(int use) { return use_products(static_cast<ProductUse>(use)); }

uint64_t edgekv_cells_looked(const edgekv_context * ctx) { return ctx->pages.n_looked(); }

void edgekv_get_prompt_blocks(const edgekv_context * ctx, int64_t * seen, int64_t * attended) {
    const PromptBlocks blocks = ctx->plane->prompt_blocks();
    *seen     = blocks.seen;
    *attended = blocks.attended;
}
