// edgekv_describe() of edgekv_tokens.h: everything that a context's rows depend on.
#include "edgekv_tokens.h"

#include "api/internal.h"
#include "context/context.h"
#include "attention/cpu/product_nodes.h"
#include "edgekv_sources.h"

#include <string>

using namespace edgekv;

const char * edgekv_sources() { return EDGEKV_SOURCES; }

edgekv_status edgekv_describe(const edgekv_context * ctx, uintptr_t adapter, edgekv_sink sink, void * user) {
    const std::string build = std::string(EDGEKV_VERSION) + "\n" + llama_edgekv_upstream() + "\n" + EDGEKV_SOURCES + "\n";
    sink(user, build.data(), build.size());
    // the graph of one token, below, shows its own
    edgekv_weights kinds[kWeightTypes * kWeightLayouts];
    for (int i = 0, n = edgekv_get_weights(ctx, kinds, kWeightTypes * kWeightLayouts); i < n; ++i) {
        if (leaves_products(static_cast<ggml_type>(kinds[i].type), kinds[i].layout, true)) {
            const std::string left = "several tokens by ggml: " + std::to_string(kinds[i].type) + " " + (kinds[i].layout ? kinds[i].layout : "") + "\n";
            sink(user, left.data(), left.size());
        }
    }
    if (!llama_edgekv_describe(ctx->lctx, reinterpret_cast<llama_adapter_lora *>(adapter), sink, user)) {
        return fail(EDGEKV_UNSUPPORTED, "the context keeps data of its tokens that cannot be put back");
    }
    return EDGEKV_OK;
}
