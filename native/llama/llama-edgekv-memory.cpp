// The caches of a context, tensor by tensor, and the bytes that llama.cpp says they take.
#include "llama-edgekv-memory.h"

#include "llama-edgekv-access.h"
#include "llama-ext.h"

static void put_cache(std::vector<llama_edgekv_cache> & found, const llama_kv_cache * kv, llama_edgekv_content holds) {
    if (!kv || llama_edgekv_access::is_guest(*kv)) {
        return;
    }
    if (holds == LLAMA_EDGEKV_CONTENT_ALL && llama_edgekv_access::slides(*kv)) {
        holds = LLAMA_EDGEKV_CONTENT_WINDOW;
    }
    for (const auto & layer : llama_edgekv_access::layers(*kv)) {
        found.push_back({ holds, static_cast<int>(layer.il), layer.k, layer.v });
    }
}

static std::vector<llama_edgekv_cache> all_caches(const llama_context * lctx) {
    std::vector<llama_edgekv_cache> found;
    const auto besides = llama_edgekv_access::besides(lctx);
    put_cache(found, llama_edgekv_access::cache(lctx), LLAMA_EDGEKV_CONTENT_ALL);
    put_cache(found, besides.windows, LLAMA_EDGEKV_CONTENT_WINDOW);
    put_cache(found, llama_edgekv_access::index(lctx), LLAMA_EDGEKV_CONTENT_INDEX);
    if (const auto * dsv4 = dynamic_cast<const llama_kv_cache_dsv4 *>(lctx->get_memory())) {
        put_cache(found, dsv4->get_raw()->get_base(), LLAMA_EDGEKV_CONTENT_ALL);
        put_cache(found, dsv4->get_raw()->get_swa(), LLAMA_EDGEKV_CONTENT_WINDOW);
        put_cache(found, dsv4->get_csa(), LLAMA_EDGEKV_CONTENT_COMPRESSED);
        put_cache(found, dsv4->get_hca(), LLAMA_EDGEKV_CONTENT_COMPRESSED);
        put_cache(found, dsv4->get_lid(), LLAMA_EDGEKV_CONTENT_INDEX);
    }
    for (size_t il = 0; besides.states && il < besides.states->r_l.size(); ++il) {
        if (besides.states->r_l[il]) {
            found.push_back({ LLAMA_EDGEKV_CONTENT_STATE, static_cast<int>(il), besides.states->r_l[il], besides.states->s_l[il] });
        }
    }
    return found;
}

bool llama_edgekv_get_cache(const llama_context * lctx, int i, llama_edgekv_cache * out) {
    const auto found = all_caches(lctx);
    if (i < 0 || i >= static_cast<int>(found.size())) {
        return false;
    }
    *out = found[static_cast<size_t>(i)];
    return true;
}

void llama_edgekv_get_memory(const llama_context * lctx, llama_edgekv_memory * out) {
    const auto & hparams = lctx->get_model().hparams;
    *out = {};
    out->n_swa    = static_cast<int>(hparams.n_swa);
    out->chunks   = hparams.swa_type == LLAMA_SWA_TYPE_CHUNKED;
    out->n_listed = hparams.indexer_head_size > 0 ? static_cast<int>(hparams.indexer_top_k) : 0;
    out->mla      = hparams.is_mla();
    out->compute  = llama_edgekv_access::output_bytes(lctx);
    for (const auto & [buft, of] : lctx->memory_breakdown()) {
        out->caches  += of.context;
        out->compute += of.compute;
    }
}
