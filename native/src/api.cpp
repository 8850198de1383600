// The C functions of edgekv.h and the hooks registered in libllama.
#include "api_internal.h"
#include "backends.h"
#include "context.h"
#include "device_library.h"
#include "nodes.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>

using namespace edgekv;

namespace {

thread_local std::string t_error;

// What the library knows. Contexts come and go on any thread; a context's own state belongs to its decoding thread.
struct Library {
    std::mutex mutex;
    std::map<const llama_context *, std::unique_ptr<edgekv_context>> contexts;
    bool initialised = false;
    bool have_defaults = false;
    edgekv_params defaults = {};
    edgekv_callbacks callbacks = {};
};

Library & library() {
    static Library * lib = new Library;  // never destroyed: contexts may outlive static destruction
    return *lib;
}

std::atomic<bool> g_enabled{false};
Isa g_isa = Isa::portable;

edgekv_status check_params(const edgekv_params & params) {
    if (params.placement.kind < EDGEKV_DEVICE_HOST || params.placement.kind > EDGEKV_DEVICE_EMULATED || params.placement.index < 0) {
        return fail(EDGEKV_INVALID, "there is no device number " + std::to_string(params.placement.index) + " of kind " +
                                    std::to_string((int) params.placement.kind));
    }
    if (params.page_tokens < 16 || params.page_tokens % 16 != 0 || params.page_tokens > 4096) {
        return fail(EDGEKV_INVALID, "page_tokens is " + std::to_string(params.page_tokens) +
                                    "; it must be a multiple of 16 from 16 to 4096");
    }
    if (params.mode < EDGEKV_MODE_OFF || params.mode > EDGEKV_MODE_EVICT) {
        return fail(EDGEKV_INVALID, "there is no KV mode number " + std::to_string((int) params.mode));
    }
    if (params.mode == EDGEKV_MODE_EVICT && params.placement.kind != EDGEKV_DEVICE_HOST) {
        return fail(EDGEKV_INVALID, "mode evict runs on the processor only; use the device cpu");
    }

    return check_selection(params.selection);
}

edgekv_status choose_isa() {
    const char * wanted = std::getenv("EDGEKV_ISA");
    if (!wanted || !*wanted) {
        g_isa = isa_best();
        return EDGEKV_OK;
    }

    std::string names;
    for (const Isa isa : kAllIsa) {
        if (std::strcmp(wanted, isa_name(isa)) == 0) {
            if (!isa_supported(isa)) {
                return fail(EDGEKV_UNSUPPORTED, std::string("EDGEKV_ISA=") + wanted + " is not available on this machine or in this build");
            }
            g_isa = isa;
            return EDGEKV_OK;
        }
        names += std::string(names.empty() ? "" : ", ") + isa_name(isa);
    }

    return fail(EDGEKV_INVALID, std::string("EDGEKV_ISA=") + wanted + " is not known; use one of: " + names);
}

edgekv_context * find(const llama_context * lctx) {
    auto & lib = library();
    std::lock_guard<std::mutex> lock(lib.mutex);
    const auto it = lib.contexts.find(lctx);

    return it == lib.contexts.end() ? nullptr : it->second.get();
}

// null with EDGEKV=0 too: what runs around and inside a ubatch is a no-op then
edgekv_context * find_active(const llama_context * lctx) {
    return hooks_enabled() ? find(lctx) : nullptr;
}

edgekv_callbacks current_callbacks() {
    auto & lib = library();
    std::lock_guard<std::mutex> lock(lib.mutex);

    return lib.callbacks;
}

// ---- hooks: called by libllama -----------------------------------------------------------------------------------------------

void on_created(llama_context * lctx) {
    edgekv_params params;
    {
        auto & lib = library();
        std::lock_guard<std::mutex> lock(lib.mutex);
        if (!lib.have_defaults) {
            return;
        }
        params = lib.defaults;
    }

    edgekv_context * ctx;
    edgekv_attach(lctx, &params, &ctx);  // where it fails the context runs stock, and edgekv_find() says so
}

void on_freed(llama_context * lctx) {
    if (edgekv_context * ctx = find(lctx)) {
        edgekv_detach(ctx);
    }
}

void on_ubatch_begin(llama_context * lctx, int n_tokens) {
    if (edgekv_context * ctx = find_active(lctx)) {
        ctx->decoder.store(this_thread_name(), std::memory_order_release);
        ctx->begin_ubatch(n_tokens);
    }
}

void on_ubatch_end(llama_context * lctx, bool ok) {
    edgekv_context * ctx = find_active(lctx);
    if (!ctx) {
        return;
    }

    if (ctx->end_ubatch(ok)) {
        if (const auto callbacks = current_callbacks(); callbacks.ubatch) {
            callbacks.ubatch(ctx, callbacks.user);
        }
    }
    ctx->decoder.store(nullptr, std::memory_order_release);
}

bool on_build_store(llama_context * lctx, const llama_edgekv_store * args) {
    edgekv_context * ctx = find_active(lctx);

    return ctx && build_store(*ctx, *args);
}

ggml_tensor * on_build_attend(llama_context * lctx, const llama_edgekv_attend * args) {
    edgekv_context * ctx = find_active(lctx);

    return ctx ? build_attend(*ctx, *args) : nullptr;
}

// asked while a context's cache is made: only the defaults can know
bool on_home(ggml_backend_dev_t device) {
    auto & lib = library();
    std::lock_guard<std::mutex> lock(lib.mutex);

    return hooks_enabled() && lib.have_defaults && lib.defaults.mode != EDGEKV_MODE_OFF &&
           lib.defaults.placement.kind == EDGEKV_DEVICE_CUDA && cuda_usable(device);
}

bool on_plans(llama_context * lctx) {
    const edgekv_context * ctx = find_active(lctx);

    return ctx && ctx->plane;
}

// the same
uint32_t on_kv_cells(uint32_t n_cells) {
    auto & lib = library();
    std::lock_guard<std::mutex> lock(lib.mutex);
    const auto & defaults = lib.defaults;
    if (!hooks_enabled() || !lib.have_defaults || defaults.mode != EDGEKV_MODE_EVICT || defaults.selection.keep_tokens == 0) {
        return n_cells;
    }

    return std::min<uint32_t>(n_cells, (defaults.selection.keep_tokens + 255)/256*256);
}

const char * on_ubatch_failure(llama_context * lctx) {
    edgekv_context * ctx = find_active(lctx);

    return ctx ? ctx->failure() : nullptr;
}

const llama_edgekv_hooks kHooks = {
    on_created, on_freed, on_ubatch_begin, on_ubatch_failure, on_ubatch_end, on_build_store, on_build_attend, on_home, on_plans, on_kv_cells,
};

}  // namespace

namespace edgekv {

edgekv_status fail(edgekv_status status, const std::string & sentence) {
    t_error = sentence;
    return status;
}

Isa selected_isa() {
    return g_isa;
}

void select_isa(Isa isa) {
    g_isa = isa;
}

bool hooks_enabled() {
    return g_enabled.load(std::memory_order_acquire);
}

const void * this_thread_name() {
    static thread_local char name;

    return &name;
}

edgekv_status check_thread(const edgekv_context * ctx) {
    if (ctx->decodes_elsewhere()) {
        return fail(EDGEKV_INVALID, "this context decodes on another thread; what it attends is changed between two decodes, or by the "
                                    "decoding thread in its ubatch callback");
    }

    return EDGEKV_OK;
}

}  // namespace edgekv

// ---- the library -------------------------------------------------------------------------------------------------------------

const char * edgekv_version(void) {
    return EDGEKV_VERSION;
}

const char * edgekv_upstream(void) {
    return llama_edgekv_upstream();
}

const char * edgekv_last_error(void) {
    return t_error.c_str();
}

edgekv_status edgekv_init(void) {
    auto & lib = library();
    std::lock_guard<std::mutex> lock(lib.mutex);
    if (lib.initialised) {
        return EDGEKV_OK;
    }

    if (llama_edgekv_abi() != LLAMA_EDGEKV_ABI || std::strcmp(llama_edgekv_upstream(), EDGEKV_UPSTREAM) != 0) {
        return fail(EDGEKV_ABI, std::string("the loaded libllama is built from ") + llama_edgekv_upstream() + " with seam " +
                                std::to_string(llama_edgekv_abi()) + ", EdgeKV needs " + EDGEKV_UPSTREAM + " with seam " +
                                std::to_string(LLAMA_EDGEKV_ABI) + "; reinstall edgekv");
    }
    if (!load_backends()) {
        return fail(EDGEKV_UNSUPPORTED, "no library of ggml for this processor lies in " + library_folder() + "; reinstall edgekv");
    }
    if (const edgekv_status status = choose_isa(); status != EDGEKV_OK) {
        return status;
    }

    const char * enabled = std::getenv("EDGEKV");
    g_enabled.store(!enabled || std::strcmp(enabled, "0") != 0, std::memory_order_release);
    llama_edgekv_set_hooks(&kHooks);
    lib.initialised = true;

    return EDGEKV_OK;
}

bool edgekv_enabled(void) {
    return hooks_enabled();
}

edgekv_status edgekv_set_defaults(const edgekv_params * params) {
    if (params) {
        if (const edgekv_status status = check_params(*params); status != EDGEKV_OK) {
            return status;
        }
    }

    auto & lib = library();
    std::lock_guard<std::mutex> lock(lib.mutex);
    lib.have_defaults = params != nullptr;
    if (params) {
        lib.defaults = *params;
    }

    return EDGEKV_OK;
}

edgekv_status edgekv_set_callbacks(const edgekv_callbacks * callbacks) {
    auto & lib = library();
    std::lock_guard<std::mutex> lock(lib.mutex);
    lib.callbacks = callbacks ? *callbacks : edgekv_callbacks{};

    return EDGEKV_OK;
}

// ---- contexts ----------------------------------------------------------------------------------------------------------------

edgekv_status edgekv_attach(llama_context * lctx, const edgekv_params * params, edgekv_context ** out) {
    auto & lib = library();
    edgekv_context * ctx = nullptr;

    if (!lctx || !params || !out) {
        return fail(EDGEKV_INVALID, "edgekv_attach needs a context, parameters and a place for the handle");
    }
    if (const edgekv_status status = check_params(*params); status != EDGEKV_OK) {
        return status;
    }

    {
        std::lock_guard<std::mutex> lock(lib.mutex);
        if (!lib.initialised) {
            return fail(EDGEKV_INVALID, "call edgekv_init() first");
        }
        if (lib.contexts.count(lctx)) {
            return fail(EDGEKV_INVALID, "this llama_context is attached already");
        }
        edgekv_params effective = *params;
        if (!hooks_enabled()) {
            effective.mode = EDGEKV_MODE_OFF;
        }
        try {
            auto owned = std::make_unique<edgekv_context>(lctx, effective);
            ctx = owned.get();
            lib.contexts.emplace(lctx, std::move(owned));
        } catch (const std::bad_alloc &) {
            return fail(EDGEKV_NO_MEMORY, "there is no memory for the observation buffer of this context");
        }
    }
    if (hooks_enabled()) {
        ctx->place();  // where it fails, edgekv_device_problem() says why
    }

    llama_edgekv_invalidate_graph(lctx);
    *out = ctx;

    if (const auto callbacks = current_callbacks(); callbacks.attached) {
        callbacks.attached(ctx, callbacks.user);
    }

    return EDGEKV_OK;
}

void edgekv_detach(edgekv_context * ctx) {
    if (const auto callbacks = current_callbacks(); callbacks.detached) {
        callbacks.detached(ctx, callbacks.user);
    }

    llama_edgekv_invalidate_graph(ctx->lctx);

    auto & lib = library();
    std::lock_guard<std::mutex> lock(lib.mutex);
    lib.contexts.erase(ctx->lctx);
}

edgekv_context * edgekv_find(const llama_context * lctx) {
    return find(lctx);
}

llama_context * edgekv_llama(const edgekv_context * ctx) {
    return ctx->lctx;
}

edgekv_status edgekv_set_mode(edgekv_context * ctx, edgekv_mode mode) {
    if (const edgekv_status status = check_thread(ctx); status != EDGEKV_OK) {
        return status;
    }
    edgekv_params params = ctx->params;
    params.mode = mode;
    if (const edgekv_status status = check_params(params); status != EDGEKV_OK) {
        return status;
    }
    if (mode == EDGEKV_MODE_EVICT && ctx->plane) {
        return fail(EDGEKV_INVALID, "mode evict runs on the processor only, and this context runs on a device");
    }
    if (mode != EDGEKV_MODE_OFF && !hooks_enabled()) {
        return fail(EDGEKV_DISABLED, "EDGEKV=0 is set: only the stock path can run");
    }
    if (mode == EDGEKV_MODE_SPARSE && ctx->wanted_mode.load(std::memory_order_relaxed) != mode && !ctx->reserve_sparse()) {
        return fail(EDGEKV_NO_MEMORY, ctx->plane ? ctx->plane_error() : "there is no memory for the sketches of this context");
    }
    if (mode == EDGEKV_MODE_EXACT && ctx->plane && !ctx->plane->reserve_ring()) {
        return fail(EDGEKV_NO_MEMORY, ctx->plane_error());
    }
    if (ctx->plane && mode == EDGEKV_MODE_OFF) {
        ctx->release_arena();  // stock nodes copy K and V of each layer to the device: they can use it
    } else if (ctx->plane && ctx->wanted_mode.load(std::memory_order_relaxed) == EDGEKV_MODE_OFF && !ctx->reserve_arena()) {
        return fail(EDGEKV_NO_MEMORY, ctx->plane_error());
    }
    if (mode == EDGEKV_MODE_EVICT) {
        llama_edgekv_allow_gaps(ctx->lctx);
    }
    ctx->wanted_mode.store(mode, std::memory_order_release);

    return EDGEKV_OK;
}

edgekv_status edgekv_set_observe(edgekv_context * ctx, bool observe, bool observe_prompts) {
    ctx->wanted_observe.store(observe, std::memory_order_relaxed);
    ctx->wanted_observe_prompts.store(observe_prompts, std::memory_order_relaxed);

    return EDGEKV_OK;
}

edgekv_status edgekv_set_run_every(edgekv_context * ctx, int n_ubatches) {
    if (n_ubatches < 1) {
        return fail(EDGEKV_INVALID, "a run cannot end after every " + std::to_string(n_ubatches) + " ubatches");
    }
    ctx->count_runs(n_ubatches);

    return EDGEKV_OK;
}

edgekv_status edgekv_set_watched(edgekv_context * ctx, bool watched) {
    ctx->watched = watched;

    return EDGEKV_OK;
}

edgekv_params edgekv_get_params(const edgekv_context * ctx) {
    return { ctx->wanted_mode.load(std::memory_order_relaxed), ctx->params.page_tokens,
             ctx->wanted_observe.load(std::memory_order_relaxed), ctx->wanted_observe_prompts.load(std::memory_order_relaxed),
             ctx->params.selection, ctx->params.placement };
}

// ---- what can be seen --------------------------------------------------------------------------------------------------------

int edgekv_n_layer(const edgekv_context * ctx) {
    return (int) ctx->layers.size();
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
        case EDGEKV_LAYER_SWA:          return "sliding window: its cache is short already";
        case EDGEKV_LAYER_RECURRENT:    return "recurrent: no KV cache";
        case EDGEKV_LAYER_MLA:          return "compressed KV (MLA) is not served yet";
        case EDGEKV_LAYER_SHARED:       return "reads the cache of another layer";
        case EDGEKV_LAYER_V_TRANSPOSED: return "V is transposed: turn flash attention on";
        case EDGEKV_LAYER_ALIBI:        return "ALiBi position bias is not served";
        case EDGEKV_LAYER_HEAD_DIM:     return "no kernel for this head size";
        case EDGEKV_LAYER_CACHE_TYPE:   return "no kernel for this cache type (f16 and q8_0 are served)";
        case EDGEKV_LAYER_DEVICE:       return "K and V lie in device memory";
        case EDGEKV_LAYER_GRAPH:        return "its attention has an input the kernel does not serve";
    }

    return "unknown";
}

edgekv_status edgekv_get_observation(const edgekv_context * ctx, edgekv_observation * out) {
    const size_t n = (size_t) ctx->n_rows*ctx->n_heads*ctx->n_pages;
    const float * base = reinterpret_cast<const float *>(ctx->observation.data());

    *out = {};
    out->mass_max         = ctx->plane ? ctx->plane->mass_max() : base;
    out->mass_sum         = ctx->plane ? ctx->plane->mass_sum() : base + n;
    out->n_rows           = ctx->n_rows;
    out->n_heads          = ctx->n_heads;
    out->n_pages          = ctx->n_pages;
    out->pages_per_stream = ctx->pages_per_stream;
    out->page_tokens      = ctx->params.page_tokens;
    out->n_ubatches        = ctx->pending.n_ubatches;
    out->n_ubatches_hooked = ctx->pending.n_ubatches_hooked;
    out->n_tokens          = ctx->pending.n_tokens;
    out->n_tokens_hooked   = ctx->pending.n_tokens_hooked;
    out->n_tokens_observed = ctx->pending.n_tokens_observed;
    out->ends_run         = ctx->run_ended();
    out->changed          = ctx->hierarchy.changed_pages().data();
    out->n_changed        = (int) ctx->hierarchy.changed_pages().size();
    out->newest           = -1;
    for (const int32_t page : ctx->hierarchy.changed_pages()) {
        out->newest = std::max(out->newest, ctx->hierarchy.newest(0)[page]);
    }

    return EDGEKV_OK;
}

edgekv_status edgekv_get_cells(const edgekv_context * ctx, int stream, edgekv_cells * out) {
    llama_edgekv_cells cells;
    if (stream < 0 || !llama_edgekv_get_cells(ctx->lctx, (uint32_t) stream, &cells)) {
        return fail(EDGEKV_UNSUPPORTED, ctx->n_stream == 0 ? std::string("this context has no KV cache of a kind EdgeKV knows")
                                                           : "there is no stream " + std::to_string(stream));
    }
    *out = { (int) cells.n_cells, (int) cells.n_stream, (int) cells.n_used, (int) cells.used_end, (int) cells.n_seq_words,
             cells.pos, cells.seq, cells.changed, cells.now,
             ctx->read_sparsely ? reinterpret_cast<const uint8_t *>(ctx->read_sparsely.get()) + (size_t) stream*ctx->n_cells : nullptr };
    static_assert(sizeof(std::atomic<uint8_t>) == 1, "callers see an array of bytes");

    return EDGEKV_OK;
}

int edgekv_stream_of(const edgekv_context * ctx, int seq_id) {
    return llama_edgekv_stream_of(ctx->lctx, seq_id);
}

edgekv_status edgekv_get_rows(const edgekv_context * ctx, int il, bool value, edgekv_rows * out) {
    edgekv_layer info;
    if (const edgekv_status status = edgekv_get_layer(ctx, il, &info); status != EDGEKV_OK) {
        return status;
    }

    const auto &        seam   = ctx->layers[il]->seam;
    const ggml_tensor * tensor = value ? seam.v : seam.k;
    if (!tensor || !seam.host || (value && seam.v_transposed)) {
        return fail(EDGEKV_UNSUPPORTED, "layer " + std::to_string(il) + " has no rows to see: " +
                                        (tensor && seam.host ? "V is transposed" : tensor ? "they lie in device memory"
                                                                                          : "it has no KV cache of its own"));
    }

    const int head_dim = value ? seam.head_dim_v : seam.head_dim_k;
    *out = { tensor->data, (int) tensor->type, (int) tensor->ne[2], (int) tensor->ne[1], info.n_head_kv, head_dim,
             tensor->nb[2], tensor->nb[1], ggml_row_size(tensor->type, head_dim) };

    return EDGEKV_OK;
}

edgekv_memory edgekv_get_memory(const edgekv_context * ctx) {
    edgekv_memory out = {};
    for (const auto & layer : ctx->layers) {
        if (layer->seam.k && layer->seam.v) {
            out.home_bytes += ggml_nbytes(layer->seam.k) + ggml_nbytes(layer->seam.v);
        }
    }
    for (const auto & workspace : ctx->workspaces) {
        out.workspace_bytes += workspace.size();
    }
    for (const auto & workspace : ctx->select_workspaces) {
        out.workspace_bytes += workspace.size();
    }
    for (const auto & workspace : ctx->prompt_workspaces) {
        out.workspace_bytes += workspace.size();
    }
    const auto lists_bytes = [](const std::vector<RowLists> & all) {
        size_t n = 0;
        for (const RowLists & lists : all) {
            n += lists.cells.size() + lists.weights.size() + lists.n_rows.size();
        }
        return n;
    };
    out.workspace_bytes += lists_bytes(ctx->lists);
    for (const auto & layer : ctx->layers) {
        out.workspace_bytes += lists_bytes(layer->lists);
    }
    out.observation_bytes = ctx->observation.size();
    out.sketch_bytes      = ctx->hierarchy.sketch_bytes();
    out.arena_bytes       = ctx->hierarchy.arena_bytes();
    out.table_bytes       = ctx->hierarchy.table_bytes();
    if (ctx->plane) {
        const EngineBytes device = ctx->plane->bytes();
        out.observation_bytes = device.mass;
        out.workspace_bytes   = device.workspace;
        out.sketch_bytes      = device.sketches;
        out.arena_bytes       = device.arena;
        out.table_bytes      += device.tables;
        out.device_bytes      = device.fixed + device.arena;
        out.pinned            = ctx->params.placement.kind == EDGEKV_DEVICE_CUDA;
    }
    out.workspace_bytes += ctx->staging.bytes();
    out.n_cells           = ctx->n_stream*ctx->n_cells;
    for (int s = 0; s < ctx->n_stream; ++s) {
        llama_edgekv_cells cells;
        if (llama_edgekv_get_cells(ctx->lctx, (uint32_t) s, &cells)) {
            out.n_cells_used += (int) cells.n_used;
        }
    }

    return out;
}

// ---- instruction sets --------------------------------------------------------------------------------------------------------

const char * edgekv_isa_name(int isa) {
    return isa >= 0 && isa < kNumIsa ? isa_name(kAllIsa[isa]) : nullptr;
}

bool edgekv_isa_supported(int isa) {
    return isa >= 0 && isa < kNumIsa && isa_supported(kAllIsa[isa]);
}

int edgekv_isa(void) {
    return (int) selected_isa();
}
