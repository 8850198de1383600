#include "llama-edgekv.h"

#include "llama-context.h"
#include "llama-graph.h"
#include "llama-impl.h"
#include "llama-kv-cache.h"
#include "llama-kv-cache-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-model.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

#ifndef EDGEKV_UPSTREAM
#error "EDGEKV_UPSTREAM is set by native/CMakeLists.txt from patches/UPSTREAM"
#endif

static std::atomic<const llama_edgekv_hooks *> g_hooks{nullptr};

// the context whose ubatch this thread is building and computing
static thread_local llama_context * t_current = nullptr;

static_assert(sizeof(llama_pos) == sizeof(int32_t), "positions are exported as int32");
static_assert(sizeof(llama_kv_cells::seq_set_t) % sizeof(uint64_t) == 0, "sequence bits are exported as 64-bit words");

// the one place that reads llama.cpp's private state
struct llama_edgekv_access {
    // the plain cache of a context: its only one, the non-SWA half of iSWA, or the attention part of a hybrid memory
    static llama_kv_cache * cache(const llama_context * lctx) { return cache(lctx->get_memory()); }

    static llama_kv_cache * cache(llama_memory_i * mem) {
        if (auto * kv = dynamic_cast<llama_kv_cache *>(mem)) {
            return kv;
        }
        if (auto * iswa = dynamic_cast<llama_kv_cache_iswa *>(mem)) {
            return iswa->get_base();
        }
        if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(mem)) {
            return hybrid->get_mem_attn();
        }
        if (auto * hybrid = dynamic_cast<llama_memory_hybrid_iswa *>(mem)) {
            return hybrid->get_mem_attn()->get_base();
        }

        return nullptr;
    }

    static const llama_kv_cache::kv_layer * layer(const llama_kv_cache & kv, int il) {
        const auto it = kv.map_layer_ids.find(il);

        return it == kv.map_layer_ids.end() ? nullptr : &kv.layers[it->second];
    }

    // the cells, and K and V of some or all layers, are those of another context
    static bool is_guest(const llama_kv_cache & kv) { return kv.other != nullptr; }

    static bool v_transposed(const llama_kv_cache & kv) { return kv.v_trans; }

    static llama_kv_cells & cells(const llama_kv_cache & kv, uint32_t stream) { return kv.v_cells[stream]; }

    static void fill(llama_kv_cells & cells, llama_edgekv_cells & out) {
        out.n_cells     = cells.size();
        out.n_used      = cells.get_used();
        out.used_end    = cells.used_max_p1();
        out.n_seq_words = sizeof(llama_kv_cells::seq_set_t)/sizeof(uint64_t);
        out.pos         = cells.pos.data();
        out.seq         = reinterpret_cast<const uint64_t *>(cells.seq.data());
        out.changed     = cells.edgekv_clock.times().data();
        out.now         = cells.edgekv_clock.now();
        out.labels      = cells.edgekv_labels.data();
    }

    static int changed(const llama_kv_cells & cells, uint64_t since, llama_edgekv_range * out, int capacity) {
        int n = 0;
        const bool known = cells.edgekv_clock.since(since, [&](uint32_t first, uint32_t end) {
            if (n < capacity) {
                out[n] = { first, end };
            }
            n += 1;
        });
        if (!known || n > capacity) {
            out[0] = { 0, cells.size() };
            n = 1;
        }

        return n;
    }

    static bool & gaps(llama_kv_cache & kv) { return kv.v_cells[0].edgekv_clock.gaps; }

    static int free_cells(llama_kv_cache & kv, uint32_t stream, const uint32_t * idxs, int n) {
        auto & cells = kv.v_cells[stream];
        auto & head  = kv.v_heads[stream];

        int n_freed = 0;
        for (int i = 0; i < n; ++i) {
            if (idxs[i] < cells.size() && !cells.is_empty(idxs[i])) {
                cells.rm(idxs[i]);
                head = std::min(head, idxs[i]);  // where the search for room begins, as after seq_rm
                n_freed += 1;
            }
        }

        return n_freed;
    }

    static void invalidate_graph(llama_context * lctx) { lctx->gf_res_prev_active = nullptr; }

    static ggml_backend_t backend(llama_context * lctx, ggml_backend_dev_t device) {
        for (const auto & backend : lctx->backends) {
            if (ggml_backend_get_device(backend.get()) == device) {
                return backend.get();
            }
        }

        return nullptr;
    }

    static void reserve(llama_context * lctx) {
        lctx->sched_need_reserve = true;
        lctx->sched_reserve();
    }
};

//
// call sites
//

void llama_edgekv_context_created(llama_context * lctx) {
    const auto * hooks = g_hooks.load(std::memory_order_acquire);

    // contexts without allocations only measure memory
    if (hooks && !lctx->get_model().hparams.no_alloc) {
        hooks->context_created(lctx);
    }
}

void llama_edgekv_context_freed(llama_context * lctx) {
    if (const auto * hooks = g_hooks.load(std::memory_order_acquire)) {
        hooks->context_freed(lctx);
    }
}

llama_edgekv_ubatch::llama_edgekv_ubatch(llama_context * lctx, const llama_ubatch & ubatch) : lctx(lctx), outer(t_current) {
    t_current = lctx;

    if (const auto * hooks = g_hooks.load(std::memory_order_acquire)) {
        hooks->ubatch_begin(lctx, (int) ubatch.n_tokens);
    }
}

llama_edgekv_ubatch::~llama_edgekv_ubatch() {
    if (const auto * hooks = g_hooks.load(std::memory_order_acquire)) {
        hooks->ubatch_end(lctx, ok);
    }

    t_current = outer;
}

bool llama_edgekv_ubatch::failed() const {
    const auto * hooks    = g_hooks.load(std::memory_order_acquire);
    const char * sentence = hooks ? hooks->ubatch_failure(lctx) : nullptr;
    if (sentence) {
        LLAMA_LOG_ERROR("edgekv: %s\n", sentence);
    }

    return sentence != nullptr;
}

llama_edgekv_planning::llama_edgekv_planning(llama_context * lctx) : outer(t_current) {
    const auto * hooks = g_hooks.load(std::memory_order_acquire);

    t_current = hooks && hooks->plans(lctx) ? lctx : nullptr;
}

llama_edgekv_planning::~llama_edgekv_planning() {
    t_current = outer;
}

// a layer whose K and V stand in a plain cache of its own
static bool plain_cache(const llama_hparams & hparams, int il) {
    return hparams.has_kv(il) && !hparams.is_recr(il) && !hparams.is_mla() && !hparams.is_swa(il) && !hparams.use_alibi;
}

ggml_backend_buffer_type_t llama_edgekv_home(const llama_model & model, int il, bool v_trans, ggml_backend_buffer_type_t buft) {
    const auto * hooks   = g_hooks.load(std::memory_order_acquire);
    const auto & hparams = model.hparams;
    auto *       device  = model.dev_layer(il);
    if (!hooks || v_trans || !plain_cache(hparams, il) || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
        return buft;
    }
    for (int other = 0; other < (int) hparams.n_layer(); ++other) {
        if (plain_cache(hparams, other) && model.dev_layer(other) != device) {
            return buft;
        }
    }
    if (!hooks->home_on_host(device)) {
        return buft;
    }

    // pinned, where the device's backend has such memory
    auto * host = ggml_backend_dev_host_buffer_type(device);

    return host ? host : ggml_backend_cpu_buffer_type();
}

void llama_edgekv_huge_pages([[maybe_unused]] ggml_backend_buffer_t buf) {
#ifdef __linux__
    if (!g_hooks.load(std::memory_order_acquire) || ggml_backend_buffer_get_type(buf) != ggml_backend_cpu_buffer_type()) {
        return;
    }
    const uintptr_t huge  = uintptr_t{2} << 20;
    const uintptr_t base  = reinterpret_cast<uintptr_t>(ggml_backend_buffer_get_base(buf));
    const uintptr_t first = (base + huge - 1)/huge*huge;
    const uintptr_t end   = (base + ggml_backend_buffer_get_size(buf))/huge*huge;
    if (first < end) {
        madvise(reinterpret_cast<void *>(first), end - first, MADV_HUGEPAGE);  // where it is refused, the cache has small pages
    }
#endif
}

uint32_t llama_edgekv_kv_cells(const llama_model & model, uint32_t n_cells) {
    const auto * hooks   = g_hooks.load(std::memory_order_acquire);
    const auto & hparams = model.hparams;
    // compressed caches, and those with an index beside them, are no plain caches
    if (!hooks || hparams.is_mla() || hparams.indexer_head_size > 0) {
        return n_cells;
    }

    return hooks->kv_cells(n_cells);
}

bool llama_edgekv_has_gaps(const llama_memory_i * memory) {
    auto * kv = llama_edgekv_access::cache(const_cast<llama_memory_i *>(memory));

    return kv && llama_edgekv_access::gaps(*kv);
}

bool llama_edgekv_build_store(
        const llm_graph_context & graph, const llama_kv_cache_context * mctx,
        ggml_tensor * k_cur, ggml_tensor * v_cur, ggml_tensor * k_idxs, ggml_tensor * v_idxs, int il) {
    const auto * hooks = g_hooks.load(std::memory_order_acquire);
    if (!hooks || !t_current) {
        return false;
    }

    const llama_edgekv_store args = {
        /*.ctx    =*/ graph.ctx0,
        /*.gf     =*/ graph.gf,
        /*.il     =*/ il,
        /*.k_cur  =*/ k_cur,
        /*.v_cur  =*/ v_cur,
        /*.k_idxs =*/ k_idxs,
        /*.v_idxs =*/ v_idxs,
        /*.k      =*/ mctx->get_k(graph.ctx0, il),
        /*.v      =*/ mctx->get_v(graph.ctx0, il),
    };

    return hooks->build_store(t_current, &args);
}

ggml_tensor * llama_edgekv_build_attend(
        const llm_graph_context & graph, ggml_tensor * q, ggml_tensor *& k, ggml_tensor *& v, ggml_tensor * kq_b,
        ggml_tensor * mask, ggml_tensor * sinks, ggml_tensor * v_mla, int64_t n_kv_max, float scale, int il) {
    const auto * hooks = g_hooks.load(std::memory_order_acquire);
    if (!hooks || !t_current || !mask || !k->view_src || !v->view_src) {
        return nullptr;
    }

    const llama_edgekv_attend args = {
        /*.ctx     =*/ graph.ctx0,
        /*.gf      =*/ graph.gf,
        /*.il      =*/ il,
        /*.q       =*/ q,
        /*.k       =*/ k,
        /*.v       =*/ v,
        /*.k_stock =*/ &k,
        /*.v_stock =*/ &v,
        /*.mask    =*/ mask,
        /*.sinks   =*/ sinks,
        /*.scale   =*/ scale,
        /*.softcap =*/ graph.hparams.attn_soft_cap ? graph.hparams.f_attn_logit_softcapping : 0.0f,
        /*.plain   =*/ !kq_b && !v_mla && n_kv_max == 0,
    };

    return hooks->build_attend(t_current, &args);
}

//
// exports
//

int llama_edgekv_abi(void) {
    return LLAMA_EDGEKV_ABI;
}

const char * llama_edgekv_upstream(void) {
    return EDGEKV_UPSTREAM;
}

void llama_edgekv_set_hooks(const llama_edgekv_hooks * hooks) {
    g_hooks.store(hooks, std::memory_order_release);
}

void llama_edgekv_invalidate_graph(llama_context * lctx) {
    llama_edgekv_access::invalidate_graph(lctx);
}

ggml_backend_t llama_edgekv_backend(llama_context * lctx, ggml_backend_dev_t device) {
    return llama_edgekv_access::backend(lctx, device);
}

bool llama_edgekv_reserve(llama_context * lctx) {
    try {
        llama_edgekv_access::reserve(lctx);
    } catch (const std::exception &) {
        return false;
    }

    return true;
}

int llama_edgekv_n_layer(const llama_context * lctx) {
    return (int) lctx->get_model().hparams.n_layer();
}

bool llama_edgekv_get_layer(const llama_context * lctx, int il, llama_edgekv_layer * out) {
    const auto & hparams = lctx->get_model().hparams;
    if (il < 0 || il >= llama_edgekv_n_layer(lctx)) {
        return false;
    }

    *out = {};
    out->kind       = LLAMA_EDGEKV_LAYER_NONE;
    out->n_head     = (int) hparams.n_head(il);
    out->n_head_kv  = (int) hparams.n_head_kv(il);
    out->head_dim_k = (int) hparams.n_embd_head_k(il);
    out->head_dim_v = (int) hparams.n_embd_head_v(il);
    out->device     = lctx->get_model().dev_layer(il);
    out->alibi      = hparams.use_alibi;

    if (hparams.is_recr(il)) {
        out->kind = LLAMA_EDGEKV_LAYER_RECURRENT;
        return true;
    }
    if (hparams.is_mla()) {
        out->kind = LLAMA_EDGEKV_LAYER_MLA;
        return true;
    }
    if (hparams.is_swa(il)) {
        out->kind = LLAMA_EDGEKV_LAYER_SWA;
        return true;
    }

    const auto * kv    = llama_edgekv_access::cache(lctx);
    const auto * layer = kv ? llama_edgekv_access::layer(*kv, il) : nullptr;
    if (!layer || !layer->k || !layer->v) {
        return true;
    }
    if ((int) layer->il != il || llama_edgekv_access::is_guest(*kv)) {
        out->kind = LLAMA_EDGEKV_LAYER_SHARED;
        return true;
    }

    out->kind         = LLAMA_EDGEKV_LAYER_ATTENTION;
    out->v_transposed = llama_edgekv_access::v_transposed(*kv);
    out->host         = ggml_backend_buffer_is_host(layer->k->buffer) && ggml_backend_buffer_is_host(layer->v->buffer);
    out->k            = layer->k;
    out->v            = layer->v;

    return true;
}

bool llama_edgekv_get_cells(const llama_context * lctx, uint32_t stream, llama_edgekv_cells * out) {
    const auto * kv = llama_edgekv_access::cache(lctx);
    if (!kv || stream >= kv->get_n_stream()) {
        return false;
    }

    *out = {};
    out->n_stream = kv->get_n_stream();
    llama_edgekv_access::fill(llama_edgekv_access::cells(*kv, stream), *out);

    return true;
}

int llama_edgekv_get_changed(const llama_context * lctx, uint32_t stream, uint64_t since, llama_edgekv_range * out, int capacity) {
    const auto * kv = llama_edgekv_access::cache(lctx);
    if (!kv || stream >= kv->get_n_stream()) {
        return 0;
    }

    return llama_edgekv_access::changed(llama_edgekv_access::cells(*kv, stream), since, out, capacity);
}

int llama_edgekv_free_cells(llama_context * lctx, uint32_t stream, const uint32_t * cells, int n) {
    auto * kv = llama_edgekv_access::cache(lctx);

    if (!kv || llama_edgekv_access::is_guest(*kv) || stream >= kv->get_n_stream()) {
        return 0;
    }

    return llama_edgekv_access::free_cells(*kv, stream, cells, n);
}

void llama_edgekv_allow_gaps(llama_context * lctx) {
    if (auto * kv = llama_edgekv_access::cache(lctx); kv && !llama_edgekv_access::is_guest(*kv)) {
        llama_edgekv_access::gaps(*kv) = true;
    }
}

bool llama_edgekv_get_rope(const llama_context * lctx, llama_edgekv_rope * out) {
    const auto & hparams = lctx->get_model().hparams;
    const auto & cparams = lctx->get_cparams();

    *out = {};
    if (llama_edgekv_n_layer(lctx) == 0) {  // of a model only the vocabulary may be loaded
        return false;
    }
    *out = { (int) hparams.n_rot(), cparams.rope_freq_base, cparams.rope_freq_scale };

    return hparams.rope_type != LLAMA_ROPE_TYPE_NONE;
}

int llama_edgekv_stream_of(const llama_context * lctx, int seq_id) {
    const auto * kv = llama_edgekv_access::cache(lctx);
    if (!kv || seq_id < 0 || seq_id >= (int) kv->get_n_seq_max()) {
        return -1;
    }

    return (int) kv->get_stream(seq_id);
}
