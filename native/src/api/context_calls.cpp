// The C functions for one context: its settings and its reports.
#include "api/guard.h"
#include "context/context.h"

#include <algorithm>
#include <cmath>
#include <string>

using namespace edgekv;

namespace edgekv {

edgekv_status check_params(const edgekv_params & params) {
    if (params.placement.kind < EDGEKV_DEVICE_HOST || params.placement.kind > EDGEKV_DEVICE_EMULATED || params.placement.index < 0) {
        return fail(EDGEKV_INVALID, "there is no device number " + std::to_string(params.placement.index) + " of kind " +
                                    std::to_string(static_cast<int>(params.placement.kind)));
    }
    if (params.page_tokens < 16 || params.page_tokens % 16 != 0 || params.page_tokens > 4096) {
        return fail(EDGEKV_INVALID, "page_tokens is " + std::to_string(params.page_tokens) +
                                    "; it must be a multiple of 16 from 16 to 4096");
    }
    if (params.mode < EDGEKV_MODE_OFF || params.mode > EDGEKV_MODE_EVICT) {
        return fail(EDGEKV_INVALID, "there is no KV mode number " + std::to_string(static_cast<int>(params.mode)));
    }
    if (params.mode == EDGEKV_MODE_EVICT && params.placement.kind != EDGEKV_DEVICE_HOST) {
        return fail(EDGEKV_INVALID, "mode evict runs on the processor only; use the device cpu");
    }

    return check_selection(params.selection);
}

}  // namespace edgekv

llama_context * edgekv_llama(const edgekv_context * ctx) {
    return ctx->lctx;
}

edgekv_status edgekv_set_mode(edgekv_context * ctx, edgekv_mode mode) {
    EDGEKV_TRY(check_thread(ctx));
    edgekv_params params = ctx->params;
    params.mode = mode;
    EDGEKV_TRY(check_params(params));
    if (mode != EDGEKV_MODE_OFF && !hooks_enabled()) {
        return fail(EDGEKV_DISABLED, "EDGEKV=0 is set: only the stock path can run");
    }

    return guarded([&] { return told(ctx->set_mode(mode)); });
}

edgekv_status edgekv_set_observe(edgekv_context * ctx, bool observe, bool observe_prompts) {
    ctx->wanted_observe.store(observe, std::memory_order_relaxed);
    ctx->wanted_observe_prompts.store(observe_prompts, std::memory_order_relaxed);

    return EDGEKV_OK;
}

edgekv_status edgekv_set_prompts(edgekv_context * ctx, const int32_t * seq_ids, int n) {
    if (n < 0 || (n > 0 && !seq_ids)) {
        return fail(EDGEKV_INVALID, "edgekv_set_prompts needs the ids of its sequences, or none of them");
    }
    llama_edgekv_cells cells = {};
    const int          n_seq = llama_edgekv_get_cells(ctx->lctx, 0, &cells) ? 64 * static_cast<int>(cells.n_seq_words) : 0;
    for (int i = 0; i < n; ++i) {
        if (seq_ids[i] < 0 || (n_seq > 0 && seq_ids[i] >= n_seq)) {
            return fail(EDGEKV_INVALID, "there is no sequence " + std::to_string(seq_ids[i]) + "; use one from 0 to " + std::to_string(n_seq - 1));
        }
    }

    return guarded([&] {
        ctx->prompts.assign(seq_ids, seq_ids + n);
        return EDGEKV_OK;
    });
}

edgekv_status edgekv_set_run_every(edgekv_context * ctx, int n_ubatches) {
    if (n_ubatches < 0) {
        return fail(EDGEKV_INVALID, "a run cannot end after every " + std::to_string(n_ubatches) + " ubatches");
    }
    ctx->ubatches.count_runs(n_ubatches);

    return EDGEKV_OK;
}

edgekv_status edgekv_set_watched(edgekv_context * ctx, bool watched) {
    ctx->ubatches.watched = watched;

    return EDGEKV_OK;
}

edgekv_params edgekv_get_params(const edgekv_context * ctx) {
    return { ctx->wanted_mode.load(std::memory_order_relaxed), ctx->params.page_tokens,
             ctx->wanted_observe.load(std::memory_order_relaxed), ctx->wanted_observe_prompts.load(std::memory_order_relaxed),
             ctx->params.selection, ctx->params.placement };
}

// ---- what can be seen --------------------------------------------------------------------------------------------------------

int edgekv_n_layer(const edgekv_context * ctx) {
    return static_cast<int>(ctx->layers.size());
}

edgekv_status edgekv_get_layer(const edgekv_context * ctx, int il, edgekv_layer * out) {
    if (il < 0 || il >= edgekv_n_layer(ctx)) {
        return fail(EDGEKV_INVALID, "there is no layer " + std::to_string(il) + "; the model has " + std::to_string(edgekv_n_layer(ctx)));
    }
    *out = ctx->layers[il]->info;

    return EDGEKV_OK;
}

const char * edgekv_layer_state_text(edgekv_layer_state state) {
    switch (state) {
        case EDGEKV_LAYER_HOOKED:       return "attended by EdgeKV";
        case EDGEKV_LAYER_DISABLED:     return "EDGEKV=0 is set";
        case EDGEKV_LAYER_NO_CACHE:     return "no KV cache of a kind EdgeKV knows";
        case EDGEKV_LAYER_SWA:          return "sliding window: its cache is short already, and stock llama.cpp attends it";
        case EDGEKV_LAYER_RECURRENT:    return "recurrent: no KV cache";
        case EDGEKV_LAYER_MLA:          return "compressed KV (MLA) is attended on the processor only, and not in mode evict";
        case EDGEKV_LAYER_SHARED:       return "reads the cache of another layer";
        case EDGEKV_LAYER_V_TRANSPOSED: return "V is transposed: turn flash attention on (llama.cpp runs Grok without it)";
        case EDGEKV_LAYER_ALIBI:        return "ALiBi position bias is served on the processor only";
        case EDGEKV_LAYER_HEAD_DIM:     return "no kernel for this head size";
        case EDGEKV_LAYER_CACHE_TYPE:   return "no kernel for this cache type (f16, q8_0 and q4_0 are served)";
        case EDGEKV_LAYER_DEVICE:       return "K and V lie in device memory";
        case EDGEKV_LAYER_GRAPH:        return "its attention has an input the kernel does not serve";
        case EDGEKV_LAYER_INDEX:        return "its attention follows an index or compressed rows beside its cache: not served yet";
        case EDGEKV_LAYER_LISTED:       return "the cells of an index are attended on the processor only, and not in mode evict";
        case EDGEKV_LAYER_WINDOW:       return "attended by EdgeKV: a sliding window, whole";
        case EDGEKV_LAYER_BIASED:       return "attended by EdgeKV: with ALiBi, whole";
        case EDGEKV_LAYER_IDLE:         return "no attention: it keeps nothing";
        case EDGEKV_LAYER_NO_MEMORY:    return "there is no memory for its nodes; stock llama.cpp attends it until there is";
    }

    return "unknown";
}

edgekv_status edgekv_get_observation(const edgekv_context * ctx, edgekv_observation * out) {
    const PageArrays  arrays = ctx->plane->arrays();
    const PageShape & shape  = ctx->shape;
    const RunCounts & run    = ctx->ubatches.run();
    const Cells &     cells  = ctx->pages.cells;

    *out = {};
    out->mass_max         = arrays.mass_max;
    out->mass_sum         = arrays.mass_sum;
    out->n_layers         = shape.n_layers;
    out->n_heads          = shape.n_heads;
    out->n_pages          = shape.n_pages;
    out->pages_per_stream = shape.pages_per_stream;
    out->page_tokens      = shape.page_tokens;
    out->n_ubatches        = run.n_ubatches;
    out->n_ubatches_hooked = run.n_ubatches_hooked;
    out->n_tokens          = run.n_tokens;
    out->n_tokens_hooked   = run.n_tokens_hooked;
    out->n_tokens_observed = run.n_tokens_observed;
    out->n_tokens_prompt  = run.n_tokens_prompt;
    out->ends_run         = ctx->ubatches.run_ended();
    out->streams          = run.streams.data();
    out->n_streams        = static_cast<int>(run.streams.size());
    out->n_refused        = ctx->n_refused();
    out->changed          = cells.changed_pages().data();
    out->n_changed        = static_cast<int>(cells.changed_pages().size());
    out->newest           = -1;
    for (const int32_t page : cells.changed_pages()) {
        out->newest = std::max(out->newest, cells.newest()[page]);
    }

    return EDGEKV_OK;
}

edgekv_status edgekv_get_cells(const edgekv_context * ctx, int stream, edgekv_cells * out) {
    llama_edgekv_cells cells;
    if (stream < 0 || !llama_edgekv_get_cells(ctx->lctx, static_cast<uint32_t>(stream), &cells)) {
        return fail(EDGEKV_UNSUPPORTED, ctx->shape.n_stream == 0 ? std::string("this context has no KV cache of a kind EdgeKV knows")
                                                           : "there is no stream " + std::to_string(stream));
    }
    *out = { static_cast<int>(cells.n_cells), static_cast<int>(cells.n_stream), static_cast<int>(cells.n_used),
             static_cast<int>(cells.used_end), static_cast<int>(cells.n_seq_words), cells.pos, cells.seq, cells.changed, cells.now, cells.labels,
             cells.n_copied, static_cast<int>(cells.copied_from) };

    return EDGEKV_OK;
}

int edgekv_stream_of(const edgekv_context * ctx, int seq_id) {
    return llama_edgekv_stream_of(ctx->lctx, seq_id);
}

edgekv_status edgekv_get_rows(const edgekv_context * ctx, int il, bool value, edgekv_rows * out) {
    edgekv_layer info;
    EDGEKV_TRY(edgekv_get_layer(ctx, il, &info));

    const auto &        llama   = ctx->layers[il]->llama;
    const ggml_tensor * tensor = ctx->layers[il]->slides() ? nullptr : value ? llama.v : llama.k;
    if (!tensor || !llama.host || (value && llama.v_transposed)) {
        return fail(EDGEKV_UNSUPPORTED, "layer " + std::to_string(il) + " has no rows to see: " +
                                        (value && ctx->layers[il]->v_in_k() ? "the first channels of a row of K are its V"
                                         : tensor && llama.host ? "V is transposed" : tensor ? "they lie in device memory"
                                                                                          : "it has no KV cache of its own"));
    }

    const int head_dim = value ? llama.head_dim_v : llama.head_dim_k;
    *out = { tensor->data, static_cast<int>(tensor->type), static_cast<int>(tensor->ne[2]), static_cast<int>(tensor->ne[1]),
             info.n_head_kv, head_dim,
             tensor->nb[2], tensor->nb[1], ggml_row_size(tensor->type, head_dim) };

    return EDGEKV_OK;
}

edgekv_memory edgekv_get_memory(const edgekv_context * ctx) {
    edgekv_memory out = {};
    for (const auto & layer : ctx->layers) {
        if (layer->llama.k && !layer->slides()) {
            out.home_bytes += ggml_nbytes(layer->llama.k) + (layer->llama.v ? ggml_nbytes(layer->llama.v) : 0);
        }
    }
    out.table_bytes = ctx->pages.bytes();
    ctx->plane->add_memory(out);
    out.n_cells = ctx->shape.n_stream * ctx->shape.n_cells;
    for (int s = 0; s < ctx->shape.n_stream; ++s) {
        llama_edgekv_cells cells;
        if (llama_edgekv_get_cells(ctx->lctx, static_cast<uint32_t>(s), &cells)) {
            out.n_cells_used += static_cast<int>(cells.n_used);
        }
    }
    if (ctx->plane->gives_back()) {
        double held = 0;
        for (int s = 0; s < ctx->shape.n_stream; ++s) {
            held += ctx->plane->tokens_held(s);
        }
        out.n_cells_used = static_cast<int>(std::lround(held));
    }
    if (ctx->bound > 0) {
        const int n_bound = ctx->shape.n_stream * ctx->bound;
        out.home_bytes = out.home_bytes / out.n_cells * n_bound;
        out.n_cells    = n_bound;
    }

    return out;
}
