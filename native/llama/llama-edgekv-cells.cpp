// The cells of the plain cache: seen in place, and freed.
#include "llama-edgekv-access.h"
#include "llama-edgekv-parked.h"

#include "llama-impl.h"
#include "llama-io.h"

#include <cstring>
#include <memory>
#include <vector>

static_assert(sizeof(llama_pos) == sizeof(int32_t), "positions are exported as int32");
static_assert(sizeof(llama_kv_cells::seq_set_t) % sizeof(uint64_t) == 0, "sequence bits are exported as 64-bit words");

//
// call sites
//

constexpr llama_seq_id READ_SPARSELY = 0x45444b56;
constexpr llama_seq_id TURNED        = 0x60000000;  // and all above: by how many positions K is turned

namespace {

struct label {
    uint8_t bits = 0;
    int32_t offset = 0;
};

bool read_label(llama_seq_id seq_id, label & out) {
    if (seq_id >= TURNED) {
        out.offset = seq_id - TURNED;
        return true;
    }
    if (seq_id == READ_SPARSELY) {
        out.bits = LLAMA_EDGEKV_SPARSE_PROMPT;
        return true;
    }
    return false;
}

// A cell was loaded whose K is turned by `offset` positions. alone: its cache holds nothing but what is loaded, so that it stays turned;
// otherwise it turns as the other tokens of its sequence did.
void turn_loaded(llama_kv_cells & cells, uint32_t i, int32_t offset, bool alone) {
    auto & clock = llama_edgekv_access::clock(cells);
    if (clock.gaps && alone) {
        clock.closed->set(cells.pos_get(i), offset);
    } else {
        llama_edgekv_access::turn(cells, i, offset - clock.offset_of(cells.pos_get(i)));
    }
}

}  // namespace

void llama_edgekv_add_label(const llama_kv_cells & cells, uint32_t i, std::vector<llama_seq_id> & seq_ids) {
    const auto & clock = cells.edgekv_clock;
    if (clock.labels[i] & LLAMA_EDGEKV_SPARSE_PROMPT) {
        seq_ids.push_back(READ_SPARSELY);
    }
    if (const int32_t offset = clock.offset_of(cells.pos_get(i))) {
        seq_ids.push_back(TURNED + offset);
    }
}

bool llama_edgekv_is_partial(const llama_kv_cells & cells, uint32_t i) { return (cells.edgekv_clock.labels[i] & LLAMA_EDGEKV_PARTIAL) != 0; }

bool llama_edgekv_take_label(llama_kv_cells & cells, uint32_t i, llama_seq_id seq_id) {
    label found;
    if (!read_label(seq_id, found)) {
        return false;
    }
    cells.edgekv_clock.labels[i] |= found.bits;
    if (found.offset) {
        turn_loaded(cells, i, found.offset, true);
    }
    return true;
}

void llama_edgekv_saved_labels::announce(uint32_t i, uint32_t & n_seq_id) {
    if (n_seq_id == 2 || n_seq_id == 3) {
        saved[i].n = n_seq_id - 1;
        n_seq_id   = 1;
    }
}

bool llama_edgekv_saved_labels::read(uint32_t i, llama_io_read_i & io) {
    for (uint32_t k = 0; k < saved[i].n; ++k) {
        llama_seq_id seq_id;
        label found;
        io.read(&seq_id, sizeof(seq_id));
        if (!read_label(seq_id, found)) {
            LLAMA_LOG_ERROR("%s: a cell has a sequence besides its own, which is no label\n", __func__);
            return false;
        }
        saved[i].labels |= found.bits;
        saved[i].offset += found.offset;
    }
    return true;
}

void llama_edgekv_saved_labels::put_on(llama_kv_cells & to, const std::vector<uint32_t> & cells) const {
    const bool alone = to.get_used() == saved.size();
    if (alone && to.edgekv_clock.gaps) {
        to.edgekv_clock.closed->clear();
    }
    for (size_t i = 0; i < saved.size(); ++i) {
        to.edgekv_clock.labels[cells[i]] |= saved[i].labels;
        turn_loaded(to, cells[i], saved[i].offset, alone);
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
    const llama_kv_cells & cells = llama_edgekv_access::cells(*kv, stream);
    return cells.edgekv_clock.ranges_since(since, cells.size(), out, capacity);
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

llama_edgekv_hold * llama_edgekv_hold_cells(
        llama_context * lctx, uint32_t stream, const uint32_t * cells, int n, const ggml_tensor * const * rows, int n_rows, bool parks,
        llama_edgekv_needed needed, void * user) {
    const auto * kv = llama_edgekv_access::cache(lctx);
    if (!kv || llama_edgekv_access::is_guest(*kv) || stream >= kv->get_n_stream()) {
        return nullptr;
    }
    auto hold = std::make_unique<llama_edgekv_hold>();
    hold->holds = llama_edgekv_access::clock(llama_edgekv_access::cells(*kv, stream)).holding();
    if (const auto * index = llama_edgekv_access::index(lctx)) {  // whichever of the two loses the cells first, its rows are still there then
        llama_edgekv_access::clock(llama_edgekv_access::cells(*index, stream)).share(hold->holds);
    }
    hold->cells.assign(cells, cells + n);
    hold->needed = needed;
    hold->user   = user;
    for (int i = 0; i < n_rows; ++i) {
        hold->rows.push_back(llama_edgekv_rows_of(rows[i], stream));
    }
    hold->parks = parks && llama_edgekv_moves(*hold, { rows, rows + n_rows });
    hold->holds->hold(hold.get());
    return hold.release();
}

bool llama_edgekv_may_park(const llama_edgekv_hold * hold) { return hold->parks; }

void llama_edgekv_read_hold(llama_edgekv_hold * hold, int row, void * out) {
    std::lock_guard<std::mutex> lock(hold->moves);
    const auto & of = hold->rows[row];
    const auto & cells = hold->cells;
    for (size_t first = 0, end; first < cells.size(); first = end) {
        for (end = first + 1; end < cells.size() && cells[end] == cells[end - 1] + 1;) {
            ++end;
        }
        std::memcpy(static_cast<char *>(out) + first*of.bytes, of.data + cells[first]*of.bytes, (end - first)*of.bytes);
    }
}

void llama_edgekv_free_hold(llama_edgekv_hold * hold) {
    if (hold) {
        hold->holds->release(hold);
        if (hold->parked) {
            hold->parked->drop(hold->cells.front(), hold->cells.back() + 1);
        }
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
