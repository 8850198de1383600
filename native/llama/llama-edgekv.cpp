// The hook table, and its calls around contexts, ubatches and graph building.
#include "llama-edgekv-access.h"

#include "llama-graph.h"
#include "llama-impl.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <vector>

#ifndef EDGEKV_UPSTREAM
#error "EDGEKV_UPSTREAM is set by native/CMakeLists.txt from patches/UPSTREAM"
#endif

static std::atomic<const llama_edgekv_hooks *> g_hooks{nullptr};

// the context whose ubatch this thread is building and computing
static thread_local llama_context * t_current = nullptr;
static thread_local uint64_t t_graph = 0;  // number of the graph that the thread builds, or built last
static thread_local const llama_edgekv_choice * t_choice = nullptr;  // choice of cells for the attention that the thread builds

llama_context * llama_edgekv_current() { return t_current; }

const llama_edgekv_hooks * llama_edgekv_get_hooks() { return g_hooks.load(std::memory_order_acquire); }

//
// call sites
//

void llama_edgekv_context_created(llama_context * lctx) {
    const auto * hooks = llama_edgekv_get_hooks();

    // a context without allocations only measures memory
    if (hooks && !lctx->get_model().hparams.no_alloc) {
        hooks->context_created(lctx);
    }
}

void llama_edgekv_context_freed(llama_context * lctx) {
    llama_edgekv_wait_for_holds(lctx);
    if (const auto * hooks = llama_edgekv_get_hooks()) {
        hooks->context_freed(lctx);
    }
}

llama_edgekv_ubatch::llama_edgekv_ubatch(llama_context * lctx, const llama_ubatch & ubatch) : lctx(lctx), outer(t_current) {
    t_current = lctx;
    ++t_graph;

    if (const auto * hooks = llama_edgekv_get_hooks()) {
        const llama_edgekv_tokens tokens = { static_cast<int>(ubatch.n_tokens), ubatch.n_seq_id, ubatch.seq_id };
        hooks->ubatch_begin(lctx, &tokens);
    }
}

llama_edgekv_ubatch::~llama_edgekv_ubatch() {
    if (const auto * hooks = llama_edgekv_get_hooks()) {
        hooks->ubatch_end(lctx, ok);
    }

    t_current = outer;
}

bool llama_edgekv_ubatch::failed() const {
    const auto * hooks    = llama_edgekv_get_hooks();
    const char * sentence = hooks ? hooks->ubatch_failure(lctx) : nullptr;
    if (sentence) {
        LLAMA_LOG_ERROR("edgekv: %s\n", sentence);
    }
    return sentence != nullptr;
}

llama_edgekv_planning::llama_edgekv_planning(llama_context * lctx) : outer(t_current) {
    const auto * hooks = llama_edgekv_get_hooks();

    t_current = hooks && hooks->plans(lctx) ? lctx : nullptr;
    ++t_graph;
}

llama_edgekv_planning::~llama_edgekv_planning() { t_current = outer; }

bool llama_edgekv_build_store(
        const llm_graph_context & graph, const llama_kv_cache_context * mctx,
        ggml_tensor * k_cur, ggml_tensor * v_cur, ggml_tensor * k_idxs, ggml_tensor * v_idxs, int il) {
    const auto * hooks = llama_edgekv_get_hooks();
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
        /*.v      =*/ v_cur ? mctx->get_v(graph.ctx0, il) : nullptr,
    };
    return hooks->build_store(t_current, &args);
}

llama_edgekv_choice::llama_edgekv_choice(const ggml_tensor * mask, ggml_tensor * shown, ggml_tensor * top_k) :
    mask(mask), shown(shown), top_k(top_k) {
    t_choice = this;
}

llama_edgekv_choice::~llama_edgekv_choice() { t_choice = nullptr; }

// Expands the attention's output over compressed rows to heads of V, as build_attn_mha() does after flash attention.
static ggml_tensor * expand(const llm_graph_context & graph, ggml_tensor * attended, const llama_edgekv_mha & mha, int64_t n_v) {
    auto * ctx  = graph.ctx0;
    auto * rows = ggml_reshape_3d(ctx, attended, n_v, mha.q->ne[1], mha.q->ne[2]);
    auto * each = ggml_mul_mat(ctx, mha.v_mla, ggml_permute(ctx, rows, 0, 2, 1, 3));
    graph.cb(each, "fattn_mla", mha.il);
    auto * heads = ggml_cont(ctx, ggml_permute(ctx, each, 0, 2, 1, 3));
    auto * out   = ggml_reshape_2d(ctx, heads, heads->ne[0]*heads->ne[1], heads->ne[2]*heads->ne[3]);
    ggml_build_forward_expand(graph.gf, out);

    return out;
}

ggml_tensor * llama_edgekv_build_attend(const llm_graph_context & graph, const llama_edgekv_mha & mha) {
    const auto * hooks = llama_edgekv_get_hooks();
    if (!hooks || !t_current || !mha.mask || !mha.k->view_src || !mha.v->view_src) {
        return nullptr;
    }

    const auto * choice = t_choice && t_choice->mask == mha.mask ? t_choice : nullptr;

    const llama_edgekv_attend args = {
        /*.ctx     =*/ graph.ctx0,
        /*.gf      =*/ graph.gf,
        /*.il      =*/ mha.il,
        /*.q       =*/ mha.q,
        /*.k       =*/ mha.k,
        /*.v       =*/ mha.v,
        /*.k_stock =*/ &mha.k,
        /*.v_stock =*/ &mha.v,
        /*.mask    =*/ choice ? choice->shown : mha.mask,
        /*.sinks   =*/ mha.sinks,
        /*.scale   =*/ mha.scale,
        /*.softcap =*/ graph.hparams.attn_soft_cap ? graph.hparams.f_attn_logit_softcapping : 0.0f,
        /*.max_bias =*/ graph.hparams.f_max_alibi_bias,
        /*.plain   =*/ !mha.kq_b && (choice || mha.n_kv_max == 0),
        /*.top_k   =*/ choice ? choice->top_k : nullptr,
    };
    const int64_t n_v      = mha.v->ne[0];
    ggml_tensor * attended = hooks->build_attend(t_current, &args);

    return attended && mha.v_mla ? expand(graph, attended, mha, n_v) : attended;
}

ggml_tensor * llama_edgekv_build_product(const llm_graph_context & graph, const ggml_tensor * product) {
    const auto * hooks = llama_edgekv_get_hooks();
    if (!hooks || !t_current) {
        return nullptr;
    }
    for (const int32_t param : product->op_params) {
        if (param) {
            return nullptr;  // the product asks for a precision of its own
        }
    }

    const llama_edgekv_product args = { graph.ctx0, t_graph, product->src[0], product->src[1], product->src[2] };
    return hooks->build_product(t_current, &args);
}

//
// exports
//

int llama_edgekv_abi(void) { return LLAMA_EDGEKV_ABI; }

const char * llama_edgekv_upstream(void) { return EDGEKV_UPSTREAM; }

void llama_edgekv_set_hooks(const llama_edgekv_hooks * hooks) { g_hooks.store(hooks, std::memory_order_release); }

void llama_edgekv_invalidate_graph(llama_context * lctx) { llama_edgekv_access::invalidate_graph(lctx); }

void llama_edgekv_stop(llama_context * lctx, bool stop) { llama_edgekv_access::stop(lctx, stop); }

void llama_edgekv_set_prompts(llama_context * lctx, const int32_t * seq_ids, int n) {
    if (const auto * hooks = llama_edgekv_get_hooks()) {
        hooks->prompts(lctx, seq_ids, n);
    }
}

ggml_backend_t llama_edgekv_backend(llama_context * lctx, ggml_backend_dev_t device) { return llama_edgekv_access::backend(lctx, device); }

void llama_edgekv_release(llama_context * lctx) { llama_edgekv_access::release(lctx); }

static thread_local bool t_reserves = false;  // for a context that is attached

bool llama_edgekv_reserves_later(const llama_context * lctx) {
    return !t_reserves && llama_edgekv_comes_home(lctx) && !llama_edgekv_get_hooks()->plans(const_cast<llama_context *>(lctx));
}

bool llama_edgekv_reserve(llama_context * lctx) {
    struct Reserving {
        Reserving() { t_reserves = true; }
        ~Reserving() { t_reserves = false; }
    } reserving;
    try {
        llama_edgekv_access::reserve(lctx);
    } catch (const std::exception &) {
        return false;
    }
    return true;
}

void llama_edgekv_rehearse(llama_context * lctx) {
    const llama_cparams & of = lctx->get_cparams();
    if (llama_model_has_encoder(&lctx->get_model()) || of.ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT || of.ctx_other) {
        return;  // it continues what an encoder or another context has computed
    }
    std::vector<llama_token> tokens(std::min({ of.n_ubatch, of.n_batch, of.n_ctx_seq - 1 }), 0);
    if (llama_decode(lctx, llama_batch_get_one(tokens.data(), static_cast<int32_t>(tokens.size()))) == 0) {
        llama_decode(lctx, llama_batch_get_one(tokens.data(), 1));
    }
    llama_synchronize(lctx);
    llama_memory_clear(lctx->get_memory(), false);
    llama_perf_context_reset(lctx);
}
