// The cells of the plain cache: seen in place, and freed.
#include "llama-edgekv-access.h"

#include "llama-impl.h"
#include "llama-io.h"

static_assert(sizeof(llama_pos) == sizeof(int32_t), "positions are exported as int32");
static_assert(sizeof(llama_kv_cells::seq_set_t) % sizeof(uint64_t) == 0, "sequence bits are exported as 64-bit words");

//
// call sites
//

bool llama_edgekv_has_gaps(const llama_memory_i * memory) {
    auto * kv = llama_edgekv_access::cache(const_cast<llama_memory_i *>(memory));
    return kv && llama_edgekv_access::gaps(*kv);
}

constexpr llama_seq_id READ_SPARSELY = 0x45444b56;

void llama_edgekv_add_label(uint8_t labels, std::vector<llama_seq_id> & seq_ids) {
    if (labels & LLAMA_EDGEKV_SPARSE_PROMPT) {
        seq_ids.push_back(READ_SPARSELY);
    }
}

bool llama_edgekv_take_label(uint8_t & labels, llama_seq_id seq_id) {
    if (seq_id != READ_SPARSELY) {
        return false;
    }
    labels = LLAMA_EDGEKV_SPARSE_PROMPT;
    return true;
}

void llama_edgekv_saved_labels::announce(uint32_t i, uint32_t & n_seq_id) {
    if (n_seq_id == 2) {
        labels[i] = LLAMA_EDGEKV_SPARSE_PROMPT;
        n_seq_id  = 1;
    }
}

bool llama_edgekv_saved_labels::read(uint32_t i, llama_io_read_i & io) {
    if (!labels[i]) {
        return true;
    }
    llama_seq_id seq_id;
    io.read(&seq_id, sizeof(seq_id));
    if (seq_id != READ_SPARSELY) {
        LLAMA_LOG_ERROR("%s: a cell has a sequence besides its own, which is no label\n", __func__);
    }
    return seq_id == READ_SPARSELY;
}

void llama_edgekv_saved_labels::put_on(std::vector<uint8_t> & to, const std::vector<uint32_t> & cells) const {
    for (size_t i = 0; i < labels.size(); ++i) {
        to[cells[i]] = labels[i];
    }
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
    const int n_freed = llama_edgekv_access::free_cells(*kv, stream, cells, n);
    llama_edgekv_give_back(*kv);
    return n_freed;
}

void llama_edgekv_allow_gaps(llama_context * lctx) {
    if (auto * kv = llama_edgekv_access::cache(lctx); kv && !llama_edgekv_access::is_guest(*kv)) {
        llama_edgekv_access::gaps(*kv) = true;
    }
}

int llama_edgekv_stream_of(const llama_context * lctx, int seq_id) {
    const auto * kv = llama_edgekv_access::cache(lctx);
    if (!kv || seq_id < 0 || seq_id >= static_cast<int>(kv->get_n_seq_max())) {
        return -1;
    }
    return static_cast<int>(kv->get_stream(seq_id));
}

//
// cells that are held
//

struct llama_edgekv_hold {
    std::shared_ptr<llama_edgekv_holds> holds;
    std::vector<uint32_t> cells;
    size_t n_released = 0;  // the first so many
};

llama_edgekv_hold * llama_edgekv_hold_cells(llama_context * lctx, uint32_t stream, const uint32_t * cells, int n) {
    const auto * kv = llama_edgekv_access::cache(lctx);
    if (!kv || llama_edgekv_access::is_guest(*kv) || stream >= kv->get_n_stream()) {
        return nullptr;
    }
    auto hold = std::make_unique<llama_edgekv_hold>();
    hold->holds = llama_edgekv_access::cells(*kv, stream).edgekv_clock.holding();
    hold->cells.assign(cells, cells + n);
    hold->holds->hold(hold->cells);
    return hold.release();
}

void llama_edgekv_release_cells(llama_edgekv_hold * hold, int n) {
    const size_t end = std::min(hold->cells.size(), static_cast<size_t>(std::max(n, 0)));
    if (end > hold->n_released) {
        hold->holds->release(hold->cells.data() + hold->n_released, end - hold->n_released);
        hold->n_released = end;
    }
}

void llama_edgekv_free_hold(llama_edgekv_hold * hold) {
    if (hold) {
        llama_edgekv_release_cells(hold, static_cast<int>(hold->cells.size()));
        delete hold;
    }
}

void llama_edgekv_wait_for_cells(llama_context * lctx, uint32_t stream, const uint32_t * cells, int n) {
    const auto * kv = llama_edgekv_access::cache(lctx);
    if (!kv || llama_edgekv_access::is_guest(*kv) || stream >= kv->get_n_stream()) {
        return;
    }
    for (int i = 0; i < n; ++i) {
        llama_edgekv_access::cells(*kv, stream).edgekv_clock.wait_for(cells[i]);
    }
}

void llama_edgekv_wait_for_holds(const llama_context * lctx) {
    const auto * kv = llama_edgekv_access::cache(lctx);
    for (uint32_t stream = 0; kv && !llama_edgekv_access::is_guest(*kv) && stream < kv->get_n_stream(); ++stream) {
        llama_edgekv_access::cells(*kv, stream).edgekv_clock.wait_for_all();
    }
}
