// Rows that a single layer gives back (mode evict), while other layers keep theirs in the same cells.
//
// They are scattered, so they go in small pages of the system: in huge ones nearly nothing would be free as a whole, and the kernel would bring
// given-back pages back when it makes a huge one.
#include "llama-edgekv-access.h"
#include "llama-edgekv-mapping.h"
#include "llama-edgekv-pinned.h"

#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

// K and V of a layer, if no other layer reads them, and no device; else empty
static std::vector<const ggml_tensor *> own_rows(const llama_context * lctx, int il) {
    const auto * kv    = llama_edgekv_access::cache(lctx);
    const auto * layer = kv ? llama_edgekv_access::layer(*kv, il) : nullptr;
    if (!layer || llama_edgekv_access::is_guest(*kv) || llama_edgekv_access::v_transposed(*kv) || !llama_edgekv_grows(layer->k) ||
        !llama_edgekv_grows(layer->v) || llama_edgekv_is_pinned(layer->k)) {
        return {};
    }
    for (int other = 0; other < llama_edgekv_n_layer(lctx); ++other) {
        if (other != il && llama_edgekv_access::layer(*kv, other) == layer) {
            return {};
        }
    }
    return { layer->k, layer->v };
}

#ifdef __linux__
// Advises the kernel about the whole pages among these bytes of a layer's rows.
static void advise(const ggml_tensor * rows, size_t offset, size_t end, int advice) {
    static const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t base  = reinterpret_cast<uintptr_t>(rows->data);
    const uintptr_t first = (base + offset + page - 1)/page*page;
    const uintptr_t last  = (base + end)/page*page;
    if (first < last) {
        madvise(reinterpret_cast<void *>(first), last - first, advice);
    }
}
#endif

//
// call site
//

constexpr size_t kLayerParam = GGML_MAX_OP_PARAMS/sizeof(int32_t) - 1;  // behind those of a custom node

static void keys_turned(ggml_tensor * dst, const ggml_tensor *, int ith, int, void * lctx) {
    const auto * hooks = llama_edgekv_get_hooks();
    if (hooks && ith == 0) {
        hooks->keys_turned(static_cast<llama_context *>(lctx), dst->op_params[kLayerParam]);
    }
}

ggml_tensor * llama_edgekv_behind_shift(llama_context * lctx, int il, ggml_context * ctx, ggml_tensor * shifted) {
    if (own_rows(lctx, il).empty() && !llama_edgekv_on_disk(shifted->view_src)) {
        return shifted;
    }
    ggml_tensor * node = ggml_map_custom1_inplace(ctx, shifted, keys_turned, 1, lctx);
    node->op_params[kLayerParam] = il;
    return node;
}

//
// exports
//

bool llama_edgekv_gives_rows_back(const llama_context * lctx, int il) { return !own_rows(lctx, il).empty(); }

void llama_edgekv_in_small_pages(llama_context * lctx, int il) {
#ifdef __linux__
    for (const ggml_tensor * rows : own_rows(lctx, il)) {
        advise(rows, 0, ggml_nbytes(rows), MADV_NOHUGEPAGE);
    }
#else
    (void) lctx, (void) il;
#endif
}

void llama_edgekv_give_rows_back(llama_context * lctx, int il, uint32_t stream, uint32_t first, uint32_t end) {
#ifdef __linux__
    const auto tensors = own_rows(lctx, il);
    for (uint32_t i = first; !tensors.empty() && i < end; ++i) {
        llama_edgekv_access::clock(llama_edgekv_access::cells(*llama_edgekv_access::cache(lctx), stream)).wait_for(i);
    }
    for (const ggml_tensor * rows : tensors) {
        advise(rows, stream*rows->nb[2] + first*rows->nb[1], stream*rows->nb[2] + end*rows->nb[1], MADV_DONTNEED);
    }
#else
    (void) lctx, (void) il, (void) stream, (void) first, (void) end;
#endif
}
