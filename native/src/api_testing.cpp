// The C functions of edgekv_testing.h.
#include "edgekv_testing.h"

#include "api_internal.h"
#include "context.h"
#include "sample.h"

#include <algorithm>
#include <cstring>
#include <vector>

using namespace edgekv;

namespace {

// A row's sketches and slots in host memory, wherever the plane is.
class Looker {
public:
    Looker(const edgekv_context * ctx) : ctx(ctx), tiers(const_cast<edgekv_context *>(ctx)->hierarchy) {}

    std::vector<Sketch> sketches(const Layer & layer) {
        std::vector<Sketch> out;
        copies.resize(ctx->n_stream);
        for (int s = 0; s < ctx->n_stream; ++s) {
            Sketch own = tiers.sketch(layer.info.row, s);
            if (ctx->plane) {
                const char * there = ctx->plane->sketches(layer.info.row, s);
                const auto   kind  = there ? (SketchKind) ctx->params.selection.sketch : SketchKind::none;
                copies[s].resize(there ? ctx->plane->sketch_stream_bytes(layer.info.row) : 0);
                ctx->plane->read(copies[s].data(), there, copies[s].size());
                own = { kind, layer.info.head_dim, layer.info.n_head_kv, own.n_groups, copies[s].data() };
            }
            out.push_back(own);
        }

        return out;
    }

    const char * slot(int i) {
        if (!ctx->plane) {
            return tiers.slot(i);
        }
        page.resize(tiers.dims.slot_bytes);
        ctx->plane->read(page.data(), ctx->plane->arena() + i*tiers.dims.slot_bytes, page.size());

        return page.data();
    }

private:
    const edgekv_context * ctx;
    Hierarchy & tiers;
    std::vector<std::vector<char>> copies;
    std::vector<char> page;
};

}  // namespace

edgekv_check_result edgekv_check(const edgekv_context * ctx) {
    edgekv_check_result out = {};
    auto & tiers = const_cast<edgekv_context *>(ctx)->hierarchy;
    Looker looker(ctx);
    if (ctx->plane) {
        ctx->plane->wait();
    }
    std::vector<const int32_t *> positions(ctx->n_stream, nullptr);
    for (int s = 0; s < ctx->n_stream; ++s) {
        llama_edgekv_cells cells;
        if (llama_edgekv_get_cells(ctx->lctx, (uint32_t) s, &cells)) {
            positions[s] = cells.pos;
        }
    }

    for (const auto & layer : ctx->layers) {
        const int row = layer->info.row;
        if (row < 0) {
            continue;
        }

        const ggml_tensor * k = layer->seam.k;
        const ggml_tensor * v = layer->seam.v;
        const size_t k_row = ggml_row_size(k->type, layer->seam.head_dim_k);
        const size_t v_row = ggml_row_size(v->type, layer->seam.head_dim_v);

        std::vector<SketchKeys> keys;
        for (int s = 0; s < ctx->n_stream; ++s) {
            keys.push_back({ k->type == GGML_TYPE_Q8_0 ? CellType::q8_0 : CellType::f16,
                             static_cast<const char *>(k->data) + s*k->nb[2], k->nb[1], k_row });
        }
        out.n_groups_wrong += tiers.count_wrong(ctx->lctx, looker.sketches(*layer), keys, out.n_groups);

        for (int head = 0; head < layer->info.n_head_kv; ++head) {
            for (int page = 0; page < ctx->n_pages; ++page) {
                const int slot = tiers.slots(row, 0, head)[page];
                if (slot < 0) {
                    continue;
                }
                out.n_slots += 1;
                const char * copy   = looker.slot(slot);
                const int    stream = page/ctx->pages_per_stream;
                const int    first  = page%ctx->pages_per_stream*ctx->params.page_tokens;
                for (int i = 0; i < ctx->params.page_tokens && first + i < ctx->n_cells; ++i) {
                    if (positions[stream] && positions[stream][first + i] < 0) {
                        continue;  // whatever is there, no token is
                    }
                    const char * home_k = static_cast<const char *>(k->data) + stream*k->nb[2] + (first + i)*k->nb[1] + head*k_row;
                    const char * home_v = static_cast<const char *>(v->data) + stream*v->nb[2] + (first + i)*v->nb[1] + head*v_row;
                    if (std::memcmp(copy + i*k_row, home_k, k_row) != 0 ||
                        std::memcmp(copy + ctx->params.page_tokens*k_row + i*v_row, home_v, v_row) != 0) {
                        out.n_slots_wrong += 1;
                        break;
                    }
                }
            }
        }
    }

    return out;
}

edgekv_status edgekv_sample(edgekv_sample_args * args, int isa) {
    if (isa < 0 || isa >= kNumIsa || !isa_supported(kAllIsa[isa])) {
        return fail(EDGEKV_UNSUPPORTED, "this instruction set is not available on this machine or in this build");
    }

    Buffer scratch;
    if (!scratch.reserve(sample_scratch_bytes(args->n_groups, args->group))) {
        return fail(EDGEKV_NO_MEMORY, "there is no memory to sample rows");
    }

    std::vector<Sight> sight(args->n_groups);
    for (int i = 0; i < args->n_groups; ++i) {
        sight[i] = { args->sight[2*i], args->sight[2*i + 1] };
    }

    SampleProblem p = {};
    p.n_groups     = args->n_groups;
    p.group        = args->group;
    p.shares       = args->shares;
    p.tops         = args->tops;
    p.sums         = args->sums;
    p.cell_stride  = (size_t) args->n_groups*kGroupCells;
    p.group_stride = args->n_groups;
    p.sight        = sight.data();
    p.page_tokens  = 16;
    p.resolution   = args->resolution;
    p.rows         = args->rows;
    p.weights      = args->weights;
    p.scratch      = scratch.data();

    const SampleResult result = sample_rows(p, kAllIsa[isa]);
    args->n_rows    = result.n_rows;
    args->n_certain = result.n_certain;

    return EDGEKV_OK;
}

edgekv_status edgekv_set_isa(int isa) {
    if (!edgekv_isa_supported(isa)) {
        return fail(EDGEKV_UNSUPPORTED, "there is no such instruction set here");
    }
    select_isa(kAllIsa[isa]);

    return EDGEKV_OK;
}

uint64_t edgekv_cells_looked(const edgekv_context * ctx) {
    return ctx->hierarchy.n_looked();
}

void edgekv_get_prompt_blocks(const edgekv_context * ctx, int64_t * seen, int64_t * attended) {
    *seen     = ctx->prompt_blocks.seen.load(std::memory_order_relaxed);
    *attended = ctx->prompt_blocks.attended.load(std::memory_order_relaxed);
}
