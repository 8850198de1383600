// The C functions of edgekv_tokens.h: they read rows of tokens from home and write them back.
#include "edgekv_tokens.h"

#include "api/guard.h"
#include "api/internal.h"
#include "context/context.h"

#include "ggml-backend.h"
#include "llama-edgekv-parked.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

using namespace edgekv;

namespace {

struct Rows {
    ggml_tensor * tensor;
    size_t bytes;  // of a row
    int il;        // its layer
    int number;    // the layer's number among layers with a cache
    bool is_key;
};

// Calls act(K or V of a layer, or an index's keys) for each layer that keeps rows, in this order. Compressed rows are K alone.
template <typename Act>
void for_each_rows(const llama_context * lctx, Act act) {
    int number = 0;
    for (int il = 0; il < llama_edgekv_n_layer(lctx); ++il) {
        llama_edgekv_rows layer;
        if (!llama_edgekv_get_rows(lctx, il, &layer)) {
            continue;
        }
        for (ggml_tensor * tensor : { layer.k, layer.v, layer.index }) {
            if (tensor) {
                act(Rows{ tensor, ggml_row_size(tensor->type, tensor->ne[0]), il, number, tensor == layer.k });
            }
        }
        ++number;
    }
}

// Calls act(first cell, length) for each run of consecutive cells.
template <typename Act>
void for_each_run(const uint32_t * cells, int n, Act act) {
    for (int first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n && cells[end] == cells[end - 1] + 1;) {
            ++end;
        }
        act(first, end - first);
    }
}

edgekv_status check_kept(const edgekv_context * ctx) {
    return llama_edgekv_what_is_kept(ctx->lctx) == LLAMA_EDGEKV_KEEPS_OTHER
        ? fail(EDGEKV_UNSUPPORTED, "the context keeps data of its tokens that cannot be put back") : EDGEKV_OK;
}

edgekv_status check(const edgekv_context * ctx, int stream, const uint32_t * cells, int n) {
    llama_edgekv_cells view;
    EDGEKV_TRY(check_kept(ctx));
    if (stream < 0 || !llama_edgekv_get_cells(ctx->lctx, static_cast<uint32_t>(stream), &view)) {
        return fail(EDGEKV_INVALID, "there is no stream " + std::to_string(stream));
    }
    for (int i = 0; i < n; ++i) {
        if (cells[i] >= view.n_cells) {
            return fail(EDGEKV_INVALID, "there is no cell " + std::to_string(cells[i]));
        }
    }

    return EDGEKV_OK;
}

}  // namespace

edgekv_status edgekv_token_bytes(const edgekv_context * ctx, size_t * k_bytes, size_t * v_bytes) {
    EDGEKV_TRY(check_kept(ctx));
    for (int il = 0; il < llama_edgekv_n_layer(ctx->lctx); ++il) {
        k_bytes[il] = v_bytes[il] = 0;
    }
    for_each_rows(ctx->lctx, [&](const Rows & rows) { (rows.is_key ? k_bytes : v_bytes)[rows.il] += rows.bytes; });

    return EDGEKV_OK;
}

edgekv_status edgekv_read_tokens(const edgekv_context * ctx, int stream, const uint32_t * cells, int n, void * block) {
    EDGEKV_TRY(check_thread(ctx));
    EDGEKV_TRY(check(ctx, stream, cells, n));

    llama_synchronize(ctx->lctx);  // a device may still be writing rows
    char * out = static_cast<char *>(block);
    for_each_rows(ctx->lctx, [&](const Rows & rows) {
        for_each_run(cells, n, [&](int first, int n_run) {
            ggml_backend_tensor_get(rows.tensor, out + first * rows.bytes, stream * rows.tensor->nb[2] + cells[first] * rows.tensor->nb[1],
                                    n_run * rows.bytes);
        });
        out += n * rows.bytes;
    });

    return EDGEKV_OK;
}

// ---- rows that are read while others are computed ---------------------------------------------------------------------------------

struct edgekv_hold {
    struct Rows {
        size_t bytes;  // of all of them
        int layer;     // its number among layers with a cache
    };

    ~edgekv_hold() { llama_edgekv_free_hold(held); }

    int n = 0;  // tokens
    std::vector<Rows> rows;  // K and V of each layer
    llama_edgekv_hold * held = nullptr;
};

static std::vector<const ggml_tensor *> tensors_of(const edgekv_context * ctx) {
    std::vector<const ggml_tensor *> tensors;
    for_each_rows(ctx->lctx, [&](const Rows & rows) { tensors.push_back(rows.tensor); });

    return tensors;
}

edgekv_status edgekv_hold_tokens(
        edgekv_context * ctx, int stream, const uint32_t * cells, int n, int parks, edgekv_needed needed, void * user, edgekv_hold ** out) {
    EDGEKV_TRY(check_thread(ctx));
    EDGEKV_TRY(check(ctx, stream, cells, n));

    return guarded([&]() -> edgekv_status {
        const auto tensors = tensors_of(ctx);
        if (!std::all_of(tensors.begin(), tensors.end(), [](const ggml_tensor * one) { return ggml_backend_buffer_is_host(one->buffer); })) {
            return fail(EDGEKV_UNSUPPORTED, "K and V are not all in host memory");
        }
        auto hold = std::make_unique<edgekv_hold>();
        hold->n = n;
        for_each_rows(ctx->lctx, [&](const Rows & rows) { hold->rows.push_back({ n * rows.bytes, rows.number }); });
        llama_synchronize(ctx->lctx);  // a device may still be writing rows
        hold->held = llama_edgekv_hold_cells(ctx->lctx, static_cast<uint32_t>(stream), cells, n, tensors.data(), static_cast<int>(tensors.size()),
                                             parks && ctx->plane->waits_for_rows(), needed, user);
        if (!hold->held) {
            return fail(EDGEKV_UNSUPPORTED, "the cells are another context's");
        }
        *out = hold.release();

        return EDGEKV_OK;
    });
}

int edgekv_may_park(const edgekv_hold * hold) {
    return llama_edgekv_may_park(hold->held);
}

static std::vector<llama_edgekv_hold *> held_by(edgekv_hold * const * holds, int n) {
    std::vector<llama_edgekv_hold *> held;
    for (int i = 0; i < n; ++i) {
        held.push_back(holds[i]->held);
    }
    return held;
}

edgekv_status edgekv_must_copy(const edgekv_context * ctx, int seq_id, edgekv_hold * const * holds, int n, const uint8_t * whole, uint8_t * copied) {
    EDGEKV_TRY(check_thread(ctx));
    EDGEKV_TRY(check(ctx, llama_edgekv_stream_of(ctx->lctx, seq_id), nullptr, 0));

    return guarded([&]() -> edgekv_status {
        llama_edgekv_must_copy(ctx->lctx, seq_id, held_by(holds, n).data(), n, whole, copied);

        return EDGEKV_OK;
    });
}

edgekv_status edgekv_read_held_tokens(const edgekv_hold * hold, int first_layer, int end_layer, void * block) {
    char * out = static_cast<char *>(block);
    for (size_t i = 0; i < hold->rows.size(); ++i) {
        if (hold->rows[i].layer >= first_layer && hold->rows[i].layer < end_layer) {
            llama_edgekv_read_hold(hold->held, static_cast<int>(i), out);
            out += hold->rows[i].bytes;
        }
    }

    return EDGEKV_OK;
}

edgekv_status edgekv_unpark_tokens(
        edgekv_context * ctx, int stream, edgekv_hold * const * holds, int n_holds, const uint32_t * cells, int n, uint8_t * back) {
    EDGEKV_TRY(check_thread(ctx));
    EDGEKV_TRY(check(ctx, stream, cells, n));

    return guarded([&]() -> edgekv_status {
        llama_synchronize(ctx->lctx);
        int n_held = 0;
        for (int i = 0; i < n_holds; ++i) {
            n_held += holds[i]->n;
        }
        if (n_held != n) {
            return fail(EDGEKV_INVALID, std::to_string(n_held) + " tokens do not come back into " + std::to_string(n) + " cells");
        }
        std::fill_n(back, n_holds, uint8_t(0));
        if (!ctx->plane->waits_for_rows()) {  // a device may have pinned the pages there
            return EDGEKV_OK;
        }
        llama_edgekv_unpark(ctx->lctx, static_cast<uint32_t>(stream), held_by(holds, n_holds).data(), n_holds, cells, tensors_of(ctx).data(), back);

        return EDGEKV_OK;
    });
}

void edgekv_free_hold(edgekv_hold * hold) {
    delete hold;
}

// ---- snapshots --------------------------------------------------------------------------------------------------------------------

int edgekv_keeps_snapshots(const edgekv_context * ctx) {
    return llama_edgekv_keeps_snapshots(ctx->lctx);
}

edgekv_status edgekv_read_snapshot(edgekv_context * ctx, int seq_id, void * out, size_t capacity, size_t * n_bytes) {
    EDGEKV_TRY(check_thread(ctx));

    return guarded([&]() -> edgekv_status {
        *n_bytes = llama_edgekv_get_snapshot(ctx->lctx, seq_id, out, capacity);

        return *n_bytes > 0 ? EDGEKV_OK : fail(EDGEKV_UNSUPPORTED, "the context keeps no snapshots, or has no such sequence");
    });
}

edgekv_status edgekv_write_snapshot(edgekv_context * ctx, int seq_id, int position, const void * snapshot, size_t n_bytes) {
    EDGEKV_TRY(check_thread(ctx));

    return guarded([&]() -> edgekv_status {
        return llama_edgekv_set_snapshot(ctx->lctx, seq_id, position, snapshot, n_bytes)
            ? EDGEKV_OK : fail(EDGEKV_UNSUPPORTED, "the snapshot does not fit this context; the sequence is empty now");
    });
}

// ---- rows that are put in ---------------------------------------------------------------------------------------------------------

edgekv_status edgekv_add_tokens(
        edgekv_context * ctx, int seq_id, int first_pos, int n, const int32_t * tokens, const int32_t * at, const uint8_t * labels,
        edgekv_hold * const * parked, const int * parked_first, int n_parked, uint32_t * cells) {
    EDGEKV_TRY(check_thread(ctx));
    const int stream = llama_edgekv_stream_of(ctx->lctx, seq_id);
    if (stream < 0 || first_pos < 0 || n < 1) {
        return fail(EDGEKV_INVALID, "sequence " + std::to_string(seq_id) + " cannot get " + std::to_string(n) + " tokens at position " +
                                    std::to_string(first_pos));
    }
    EDGEKV_TRY(check(ctx, stream, nullptr, 0));
    for (int i = 0; i < n_parked; ++i) {
        if (parked_first[i] < 0 || parked_first[i] > n - parked[i]->n) {
            return fail(EDGEKV_INVALID, "parked tokens from " + std::to_string(parked_first[i]) + " on are not among the " + std::to_string(n));
        }
    }
    const auto held = held_by(parked, ctx->plane->waits_for_rows() ? n_parked : 0);
    const auto tensors = tensors_of(ctx);
    const llama_edgekv_returning returning = { held.data(), parked_first, static_cast<int>(held.size()), tensors.data() };
    if (!llama_edgekv_add_cells(ctx->lctx, seq_id, first_pos, n, tokens, at, &returning, cells)) {
        return fail(EDGEKV_NO_MEMORY, "the cache has no " + std::to_string(n) + " empty cells");
    }
    llama_edgekv_cells view;
    llama_edgekv_get_cells(ctx->lctx, static_cast<uint32_t>(stream), &view);
    for (int i = 0; i < n; ++i) {
        view.labels[cells[i]] = labels[i];
    }

    return EDGEKV_OK;
}

edgekv_status edgekv_in_image(const edgekv_context * ctx, int stream, const uint32_t * cells, int n, int32_t * lines, int32_t * columns) {
    EDGEKV_TRY(check(ctx, stream, cells, n));
    llama_edgekv_in_image(ctx->lctx, static_cast<uint32_t>(stream), cells, n, lines, columns);

    return EDGEKV_OK;
}

edgekv_status edgekv_write_tokens(edgekv_context * ctx, int stream, const edgekv_block_rows * blocks, int n_blocks, int first_layer, int end_layer) {
    const bool brings = ctx->arrivals.open();  // the thread that brings rows calls this, and the layers' nodes wait
    EDGEKV_TRY(brings ? EDGEKV_OK : check_thread(ctx));
    for (const auto * of = blocks; of < blocks + n_blocks; ++of) {
        EDGEKV_TRY(check(ctx, stream, of->cells, of->n));
        if (of->n < 1 || of->skip < 0 || of->skip + of->n > of->n_block) {
            return fail(EDGEKV_INVALID, "a block of " + std::to_string(of->n_block) + " tokens has no " + std::to_string(of->n) + " after its first " +
                                        std::to_string(of->skip));
        }
        if (!brings) {  // a thread that brings rows writes to new cells, which no ubatch reads yet
            llama_synchronize(ctx->lctx);
            llama_edgekv_wait_for_cells(ctx->lctx, static_cast<uint32_t>(stream), of->cells, of->n);
        }
    }

    for (const auto * of = blocks; of < blocks + n_blocks; ++of) {
        const char * in = static_cast<const char *>(of->rows);
        for_each_rows(ctx->lctx, [&](const Rows & rows) {
            if (rows.number >= first_layer && rows.number < end_layer) {
                for_each_run(of->cells, of->n, [&](int first, int n_run) {
                    ggml_backend_tensor_set(rows.tensor, in + (of->skip + first) * rows.bytes,
                                            stream * rows.tensor->nb[2] + of->cells[first] * rows.tensor->nb[1], n_run * rows.bytes);
                });
                in += of->n_block * rows.bytes;
            }
        });
    }

    return EDGEKV_OK;
}

int edgekv_can_wait_for_rows(const edgekv_context * ctx) {
    return ctx->can_wait_for_rows();
}

edgekv_status edgekv_expect_rows(edgekv_context * ctx) {
    EDGEKV_TRY(check_thread(ctx));
    llama_synchronize(ctx->lctx);
    ctx->arrivals.expect(llama_edgekv_n_layer(ctx->lctx));

    return EDGEKV_OK;
}

void edgekv_rows_came(edgekv_context * ctx, int end_layer) {
    int end = llama_edgekv_n_layer(ctx->lctx);
    for_each_rows(ctx->lctx, [&](const Rows & rows) {
        if (rows.number == end_layer) {
            end = rows.il;
        }
    });
    ctx->arrivals.came(end);
}

void edgekv_rows_failed(edgekv_context * ctx) {
    ctx->arrivals.fail();
}

edgekv_status edgekv_expect_no_rows(edgekv_context * ctx) {
    EDGEKV_TRY(check_thread(ctx));
    ctx->arrivals.expect_none();

    return EDGEKV_OK;
}
