// The library: its start, its contexts, and its hooks in libllama.
#include "api/defaults.h"
#include "api/guard.h"
#include "attention/backends.h"
#include "context/context.h"
#include "cache/kept.h"
#include "attention/cuda/library.h"
#include "attention/cpu/product_nodes.h"

#include "llama-edgekv-mapping.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <utility>

using namespace edgekv;

namespace {

thread_local std::string t_error;

// The library's state. Contexts come and go on any thread; a context's own state belongs to its decoding thread.
struct Library {
    std::mutex mutex;
    std::map<const llama_context *, std::unique_ptr<edgekv_context>> contexts;
    bool initialised = false;
    edgekv_callbacks callbacks = {};
};

Library & library() {
    static Library * lib = new Library;  // never destroyed: contexts may outlive static destruction
    return *lib;
}

std::atomic<bool> g_enabled{false};

std::atomic<int> g_throws{0};

edgekv_context * find(const llama_context * lctx) {
    auto & lib = library();
    std::lock_guard<std::mutex> lock(lib.mutex);
    const auto it = lib.contexts.find(lctx);
    return it == lib.contexts.end() ? nullptr : it->second.get();
}

// null also with EDGEKV=0: then hooks around and inside a ubatch do nothing
edgekv_context * find_active(const llama_context * lctx) { return hooks_enabled() ? find(lctx) : nullptr; }

edgekv_callbacks current_callbacks() {
    auto & lib = library();
    std::lock_guard<std::mutex> lock(lib.mutex);
    return lib.callbacks;
}

template <typename Call> auto call_back(Call call) {
    return outside([&] { return call(current_callbacks()); });
}

// Ends what is attached to a context. Others go on meanwhile: to let go of all that is pinned takes long.
void end_context(const llama_context * lctx) {
    auto & lib = library();
    std::unique_lock<std::mutex> lock(lib.mutex);
    const auto found = lib.contexts.extract(lctx);
    lock.unlock();
}

// ---- hooks: called by libllama -----------------------------------------------------------------------------------------------

void on_created(llama_context * lctx) {
    const auto [attach, params] = with_defaults([](const Defaults & defaults) { return std::pair(defaults.attach, defaults.params); });
    if (attach) {
        edgekv_context * ctx;
        edgekv_attach(lctx, &params, &ctx);  // on failure the context runs stock, and edgekv_find() finds none
    }
}

void on_freed(llama_context * lctx) {
    if (edgekv_context * ctx = find(lctx)) {
        edgekv_detach(ctx);
    }
}

void on_ubatch_begin(llama_context * lctx, const llama_edgekv_tokens * tokens) {
    if (edgekv_context * ctx = find_active(lctx)) {
        ctx->decoder.store(this_thread_name(), std::memory_order_release);
        guarded_hook(ctx, false, [&] { return ctx->begin_ubatch(*tokens), true; });
    }
}

void on_ubatch_end(llama_context * lctx, bool ok) {
    edgekv_context * ctx = find_active(lctx);
    if (!ctx) {
        return;
    }

    if (guarded_hook(ctx, false, [&] { return ctx->end_ubatch(ok); }) &&
        call_back([&](const edgekv_callbacks & to) { return to.ubatch && to.ubatch(ctx, to.user); })) {
        llama_edgekv_stop(lctx, true);
    }
    ctx->decoder.store(nullptr, std::memory_order_release);
}

bool on_build_store(llama_context * lctx, const llama_edgekv_store * args) {
    edgekv_context * ctx   = find_active(lctx);
    Layer *          layer = ctx ? ctx->served_layer(args->il, args->k) : nullptr;
    return layer && !layer->whole() && guarded_hook(ctx, false, [&] { return ctx->plane->build_store(*layer, *args); });
}

ggml_tensor * on_build_attend(llama_context * lctx, const llama_edgekv_attend * args) {
    edgekv_context * ctx   = find_active(lctx);
    Layer *          layer = ctx ? ctx->served_layer(args->il, args->k) : nullptr;
    ggml_tensor *    none  = nullptr;

    ggml_tensor * node = layer ? guarded_hook(ctx, none, [&] {
        return layer->whole() ? ctx->plane->build_whole(*layer, *args) : ctx->plane->build_attend(*layer, *args);
    }) : none;
    if (ctx && !node) {
        ctx->arrivals.wait(args->il);  // stock nodes do not wait
    }
    return node;
}

// with EDGEKV=0 and in mode off products are stock as well
ggml_tensor * on_build_product(llama_context * lctx, const llama_edgekv_product * args) {
    edgekv_context * ctx  = find_active(lctx);
    ggml_tensor *    none = nullptr;
    return ctx && ctx->params.mode != EDGEKV_MODE_OFF ? guarded_hook(ctx, none, [&] { return build_product(*args); }) : none;
}

// libllama asks while it makes a context's cache. The context has no handle yet, so the defaults answer.
bool on_home(ggml_backend_dev_t device) {
    return with_defaults([&](const Defaults & defaults) {
        return hooks_enabled() && defaults.attach && defaults.params.mode != EDGEKV_MODE_OFF &&
               runs_nodes(defaults.params.placement.kind, device);
    });
}

bool on_pins_later(ggml_backend_dev_t device) {
    return with_defaults([&](const Defaults & defaults) { return pins_later(defaults.params.placement.kind, device); });
}

bool on_plans(llama_context * lctx) {
    const edgekv_context * ctx = find_active(lctx);
    return ctx && ctx->plane->plans_graphs();
}

// asked at the same time as on_home()
uint32_t on_kv_cells(uint32_t n_cells, bool by_layer, uint32_t n_trained) {
    return with_defaults([&](const Defaults & defaults) {
        const int keep = defaults.params.selection.keep_tokens;
        if (!hooks_enabled() || !defaults.attach || defaults.params.mode != EDGEKV_MODE_EVICT || keep == 0) {
            return n_cells;
        }
        return static_cast<uint32_t>(kept_cells(static_cast<int>(n_cells), keep, by_layer, static_cast<int>(n_trained)));
    });
}

// asked at the same time. A draft model's cache has parameters of its own: another number of layers, or types that are not quantised.
void on_layer_types(int il, int n_layer, int32_t * k, int32_t * v) {
    with_defaults([&](const Defaults & defaults) {
        if (hooks_enabled() && defaults.attach && defaults.k_types.size() == static_cast<size_t>(n_layer)) {
            *k = defaults.k_types[il];
            *v = defaults.v_types[il];
        }
    });
}

void on_prompts(llama_context * lctx, const int32_t * seq_ids, int n) {
    if (edgekv_context * ctx = find_active(lctx)) {
        if (edgekv_set_prompts(ctx, seq_ids, n) != EDGEKV_OK) {
            ctx->thrown = "EdgeKV could not note which sequences are prompts; make the context anew";
        }
    }
}

int64_t on_free_bytes() {
    return call_back([](const edgekv_callbacks & to) { return to.free_bytes ? to.free_bytes(to.user) : -1; });
}

void on_keys_turned(llama_context * lctx, int il) {
    if (edgekv_context * ctx = find_active(lctx)) {
        ctx->plane->keys_turned(il);
    }
}

const char * on_ubatch_failure(llama_context * lctx) {
    edgekv_context * ctx = find_active(lctx);
    return ctx ? ctx->failure() : nullptr;
}

const llama_edgekv_hooks kHooks = {
    on_created, on_freed, on_ubatch_begin, on_ubatch_failure, on_ubatch_end, on_build_store, on_build_attend, on_build_product, on_home,
    on_pins_later, on_plans, on_kv_cells, on_layer_types, on_prompts, hooks_enabled, on_free_bytes, on_keys_turned,
};

}  // namespace

namespace edgekv {

edgekv_status fail(edgekv_status status, const std::string & sentence) {
    t_error = sentence;
    return status;
}

void throw_in_guarded(int n) { g_throws.store(n, std::memory_order_relaxed); }

void guarded_begins() {
    if (g_throws.load(std::memory_order_relaxed) > 0 && g_throws.fetch_sub(1, std::memory_order_relaxed) == 1) {
        throw std::bad_alloc();
    }
}

bool hooks_enabled() { return g_enabled.load(std::memory_order_acquire); }

const void * this_thread_name() {
    static thread_local char name;
    return &name;
}

edgekv_status told(const Failure & failure) { return failure ? fail(failure.status, failure.sentence) : EDGEKV_OK; }

edgekv_status check_thread(const edgekv_context * ctx) {
    if (ctx->decodes_elsewhere()) {
        return fail(EDGEKV_INVALID, "this context decodes on another thread; change it between two decodes, or on that thread in the "
                                    "ubatch callback");
    }
    return EDGEKV_OK;
}

}  // namespace edgekv

// ---- the library -------------------------------------------------------------------------------------------------------------

const char * edgekv_version(void) { return EDGEKV_VERSION; }

const char * edgekv_upstream(void) { return llama_edgekv_upstream(); }

const char * edgekv_last_error(void) { return t_error.c_str(); }

edgekv_status edgekv_init(void) {
    auto & lib = library();
    std::lock_guard<std::mutex> lock(lib.mutex);
    if (lib.initialised) {
        return EDGEKV_OK;
    }

    if (llama_edgekv_abi() != LLAMA_EDGEKV_ABI || std::strcmp(llama_edgekv_upstream(), EDGEKV_UPSTREAM) != 0) {
        return fail(EDGEKV_ABI, std::string("the loaded libllama is built from ") + llama_edgekv_upstream() + " with glue " +
                                std::to_string(llama_edgekv_abi()) + ", EdgeKV needs " + EDGEKV_UPSTREAM + " with glue " +
                                std::to_string(LLAMA_EDGEKV_ABI) + "; reinstall edgekv");
    }
    if (!load_backends()) {
        return fail(EDGEKV_UNSUPPORTED, "no library of ggml for this processor lies in " + library_folder() + "; reinstall edgekv");
    }
    EDGEKV_TRY(choose_isa());

    const char * enabled = std::getenv("EDGEKV");
    g_enabled.store(!enabled || std::strcmp(enabled, "0") != 0, std::memory_order_release);
    llama_edgekv_set_hooks(&kHooks);
    lib.initialised = true;
    return EDGEKV_OK;
}

bool edgekv_refused(void) { return llama_edgekv_refused(); }

bool edgekv_enabled(void) { return hooks_enabled(); }

edgekv_status edgekv_set_defaults(const edgekv_params * params) {
    if (params) {
        EDGEKV_TRY(check_params(*params));
    }

    with_defaults([&](Defaults & defaults) {
        defaults.attach = params != nullptr;
        if (params) {
            defaults.params = *params;
        }
    });
    return EDGEKV_OK;
}

void edgekv_own_defaults(bool begin) {
    auto & own = own_defaults();
    if (begin) {
        own.emplace_back();
    } else if (!own.empty()) {
        own.pop_back();
    }
    llama_edgekv_set_home(own.empty() ? nullptr : own.back().home.c_str(), true);
}

edgekv_status edgekv_set_layer_types(const int32_t * k, const int32_t * v, int n_layers) {
    for (int il = 0; il < n_layers; ++il) {
        for (const int32_t type : { k[il], v[il] }) {
            if (type < 0 || type >= GGML_TYPE_COUNT || !ggml_is_quantized(static_cast<ggml_type>(type))) {
                return fail(EDGEKV_INVALID, "a layer's K and V have types of their own only among the quantised ones");
            }
        }
    }
    with_defaults([&](Defaults & defaults) {
        defaults.k_types.assign(k, k + n_layers);
        defaults.v_types.assign(v, v + n_layers);
    });
    return EDGEKV_OK;
}

edgekv_status edgekv_set_home(const char * folder) {
#ifdef __linux__
    with_defaults([&](Defaults & defaults) {
        defaults.home = folder ? folder : "";
        llama_edgekv_set_home(defaults.home.c_str(), !own_defaults().empty());  // the text of a thread's own stays here
    });
    return EDGEKV_OK;
#else
    return folder && *folder ? fail(EDGEKV_UNSUPPORTED, "a KV home on disk needs Linux; leave it out") : EDGEKV_OK;
#endif
}

int edgekv_home_failure(void) { return llama_edgekv_home_failure(); }

edgekv_status edgekv_set_callbacks(const edgekv_callbacks * callbacks) {
    auto & lib = library();
    std::lock_guard<std::mutex> lock(lib.mutex);
    lib.callbacks = callbacks ? *callbacks : edgekv_callbacks{};
    return EDGEKV_OK;
}

void edgekv_stop(edgekv_context * ctx, bool stop) { llama_edgekv_stop(ctx->lctx, stop); }

// ---- contexts ----------------------------------------------------------------------------------------------------------------

edgekv_status edgekv_attach(llama_context * lctx, const edgekv_params * params, edgekv_context ** out) {
    auto & lib = library();
    edgekv_context * ctx = nullptr;

    if (!lctx || !params || !out) {
        return fail(EDGEKV_INVALID, "edgekv_attach needs a context, parameters and a place for the handle");
    }
    EDGEKV_TRY(check_params(*params));

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
        const edgekv_status made = guarded([&] {
            auto owned = std::make_unique<edgekv_context>(lctx, effective);
            ctx = owned.get();
            lib.contexts.emplace(lctx, std::move(owned));
            return EDGEKV_OK;
        });
        if (made == EDGEKV_NO_MEMORY) {
            return fail(EDGEKV_NO_MEMORY, "there is no memory for the observation buffer of this context");
        }
        if (made != EDGEKV_OK) {
            return made;
        }
    }
    if (hooks_enabled()) {
        const edgekv_status placed = guarded([&] {
            ctx->place();  // edgekv_device_problem() explains a failure
            return EDGEKV_OK;
        });
        if (placed != EDGEKV_OK) {
            end_context(lctx);
            return placed;
        }
    }

    llama_edgekv_invalidate_graph(lctx);
    *out = ctx;

    call_back([&](const edgekv_callbacks & to) { return to.attached ? to.attached(ctx, to.user) : void(); });
    return EDGEKV_OK;
}

void edgekv_detach(edgekv_context * ctx) {
    call_back([&](const edgekv_callbacks & to) { return to.detached ? to.detached(ctx, to.user) : void(); });

    llama_edgekv_invalidate_graph(ctx->lctx);

    end_context(ctx->lctx);
}

edgekv_context * edgekv_find(const llama_context * lctx) { return find(lctx); }
