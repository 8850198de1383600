// The cells of the plain cache: seen in place, and freed.
#include "llama-edgekv-access.h"

static_assert(sizeof(llama_pos) == sizeof(int32_t), "positions are exported as int32");
static_assert(sizeof(llama_kv_cells::seq_set_t) % sizeof(uint64_t) == 0, "sequence bits are exported as 64-bit words");

//
// call sites
//

bool llama_edgekv_has_gaps(const llama_memory_i * memory) {
    auto * kv = llama_edgekv_access::cache(const_cast<llama_memory_i *>(memory));

    return kv && llama_edgekv_access::gaps(*kv);
}

//
// exports
//

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

int llama_edgekv_stream_of(const llama_context * lctx, int seq_id) {
    const auto * kv = llama_edgekv_access::cache(lctx);
    if (!kv || seq_id < 0 || seq_id >= (int) kv->get_n_seq_max()) {
        return -1;
    }

    return (int) kv->get_stream(seq_id);
}
