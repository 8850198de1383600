// Which rows are pinned, and when. A graph views each stream of its ubatch up to the same cell, a multiple of 256, and a device may touch all of them; a
// policy moves pages of every stream. So before a batch is placed, and again when a ubatch is, all of these are pinned.
#include "llama-edgekv-pinned.h"
#include "llama-edgekv-access.h"
#include "llama-edgekv-mapping.h"

#include "ggml/ggml-edgekv-pieces.h"

#include <algorithm>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace {

constexpr uint32_t kView = 256;  // cells: views are multiples of it
constexpr uint32_t kParts = 8;   // at least, so that small caches are pinned in parts too

uintptr_t system_page() {
#ifdef __linux__
    static const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    return page;
#else
    return 4096;
#endif
}

size_t piece_of(ggml_backend_buffer_t buffer, const void * p, size_t n_bytes) {
    const auto * pinned = llama_edgekv_pins_of(buffer);
    const uintptr_t first = reinterpret_cast<uintptr_t>(p);
    return pinned && pinned->on() ? std::min(pinned->piece_end(first) - first, n_bytes) : n_bytes;
}

std::vector<const ggml_tensor *> rows_of(const llama_kv_cache & kv) {
    std::vector<const ggml_tensor *> found;
    for (const auto & layer : llama_edgekv_access::layers(kv)) {
        for (const ggml_tensor * rows : { layer.k, layer.v }) {
            if (llama_edgekv_grows(rows)) {
                found.push_back(rows);
            }
        }
    }
    return found;
}

// the context's plain cache, if its rows are pinned as tokens come; else null
const llama_kv_cache * pinned_cache(const llama_context * lctx) {
    const llama_kv_cache * kv = llama_edgekv_access::cache(lctx);
    return kv && !llama_edgekv_access::is_guest(*kv) && !llama_edgekv_access::layers(*kv).empty() &&
           llama_edgekv_is_pinned(llama_edgekv_access::layers(*kv)[0].k) ? kv : nullptr;
}

// cells of a part
uint32_t part_of(const std::vector<const ggml_tensor *> & tensors, const llama_edgekv_pinner & how, uint32_t n_cells) {
    size_t of_cell = 1;
    for (const ggml_tensor * rows : tensors) {
        of_cell += rows->nb[1];
    }
    const size_t most = std::min<size_t>(how.part_bytes/of_cell, n_cells/kParts)/kView*kView;
    return static_cast<uint32_t>(std::max<size_t>(most, kView));
}

ggml_backend_buffer_t buffer_of(const llama_kv_cache & kv) { return llama_edgekv_access::layers(kv)[0].k->buffer; }  // one mapping has all layers

// Pins each stream's first cells, so many or more.
bool pin_first(const llama_kv_cache & kv, const std::vector<uint32_t> & n_cells) {
    llama_edgekv_pinned * pinned = llama_edgekv_pins_of(buffer_of(kv));
    std::vector<const ggml_tensor *> tensors;
    for (uint32_t s = 0; s < n_cells.size(); ++s) {
        if (n_cells[s] <= pinned->cells[s]) {
            continue;
        }
        if (tensors.empty()) {
            tensors = rows_of(kv);
        }
        const uint32_t first = pinned->cells[s], part = part_of(tensors, pinned->how, kv.get_size());
        const uint32_t end   = std::min((n_cells[s] + part - 1)/part*part, kv.get_size());
        for (const ggml_tensor * rows : tensors) {
            const uintptr_t stream = reinterpret_cast<uintptr_t>(rows->data) + s*rows->nb[2];
            if (!pinned->pin(stream + first*rows->nb[1], stream + end*rows->nb[1], buffer_of(kv))) {
                return false;
            }
        }
        pinned->cells[s] = end;
    }
    return true;
}

std::vector<uint32_t> used(const llama_kv_cache & kv) {
    std::vector<uint32_t> n(llama_edgekv_access::n_streams(kv));
    for (uint32_t s = 0; s < n.size(); ++s) {
        n[s] = llama_edgekv_access::cells(kv, s).used_max_p1();
    }
    return n;
}

// The streams of a graph are viewed up to the same cell.
void view_together(std::vector<uint32_t> & n_cells, const std::vector<bool> & together) {
    uint32_t most = 0;
    for (size_t s = 0; s < n_cells.size(); ++s) {
        most = std::max(most, together[s] ? std::max(n_cells[s], 1u) : 0);
    }
    for (size_t s = 0; s < n_cells.size(); ++s) {
        n_cells[s] = GGML_PAD(together[s] ? most : n_cells[s], kView);
    }
}

}  // namespace

bool llama_edgekv_pinned::holds(uintptr_t p) const {
    const auto behind = parts.upper_bound(p);
    return behind != parts.begin() && p < std::prev(behind)->second;
}

uintptr_t llama_edgekv_pinned::piece_end(uintptr_t p) const {
    const auto behind = parts.upper_bound(p);
    return holds(p) ? std::prev(behind)->second : behind != parts.end() ? behind->first : UINTPTR_MAX;
}

bool llama_edgekv_pinned::pin(uintptr_t first, uintptr_t end, ggml_backend_buffer_t buffer) {
    char * const home = static_cast<char *>(ggml_backend_buffer_get_base(buffer));
    const size_t n_bytes = llama_edgekv_huge(ggml_backend_buffer_get_size(buffer));
    const uintptr_t page = system_page();
    std::vector<std::pair<uintptr_t, uintptr_t>> rests;
    each_rest(first/page*page, (end + page - 1)/page*page, [&](uintptr_t from, uintptr_t to) { rests.emplace_back(from, to); });
    for (const auto & [from, to] : rests) {
        if (!how.pin(how.user, reinterpret_cast<char *>(from), to - from, home, n_bytes)) {
            return false;
        }
        parts.emplace(from, to);
    }
    return true;
}

void llama_edgekv_pinned::unpin() {
    for (const auto & [first, end] : parts) {
        how.unpin(how.user, reinterpret_cast<char *>(first));
    }
    parts.clear();
    cells.clear();
    how = {};
}

bool llama_edgekv_is_pinned(const ggml_tensor * rows) {
    const auto * pinned = rows && rows->buffer ? llama_edgekv_pins_of(rows->buffer) : nullptr;
    return pinned && pinned->on();
}

bool llama_edgekv_pin_coming(const llama_context * lctx, const std::map<uint32_t, int> & n_more) {
    const llama_kv_cache * kv = pinned_cache(lctx);
    if (!kv) {
        return true;
    }
    std::vector<uint32_t> n_cells = used(*kv);
    std::vector<bool> together(n_cells.size());
    for (const auto & [stream, n] : n_more) {
        together[stream] = true;
        n_cells[stream] += static_cast<uint32_t>(n);
    }
    view_together(n_cells, together);
    return pin_first(*kv, n_cells);
}

bool llama_edgekv_pin_placed(const llama_context * lctx, const llama_ubatch & ubatch) {
    const llama_kv_cache * kv = pinned_cache(lctx);
    if (!kv) {
        return true;
    }
    std::vector<uint32_t> n_cells = used(*kv);
    std::vector<bool> together(n_cells.size());
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        together[kv->get_stream(ubatch.seq_id[i][0])] = true;
    }
    view_together(n_cells, together);
    return pin_first(*kv, n_cells);
}

//
// exports
//

// A child that wrote would move its parent to a page that the device does not read.
static void in_children(ggml_backend_buffer_t buffer, bool kept) {
#ifdef __linux__
    madvise(ggml_backend_buffer_get_base(buffer), llama_edgekv_huge(ggml_backend_buffer_get_size(buffer)), kept ? MADV_DOFORK : MADV_DONTFORK);
#else
    (void) buffer, (void) kept;
#endif
}

bool llama_edgekv_pin_rows(llama_context * lctx, const llama_edgekv_pinner & pinner) {
    const llama_kv_cache & kv = *llama_edgekv_access::cache(lctx);
    auto * pinned = llama_edgekv_pins_of(buffer_of(kv));
    if (!pinned) {
        return true;
    }
    pinned->how = pinner;
    pinned->cells.assign(llama_edgekv_access::n_streams(kv), 0);
    edgekv_set_pieces(piece_of);
    in_children(buffer_of(kv), false);
    if (pin_first(kv, { 1 })) {
        return true;
    }
    llama_edgekv_unpin_rows(lctx);
    return false;
}

void llama_edgekv_unpin_rows(llama_context * lctx) {
    if (const llama_kv_cache * kv = pinned_cache(lctx)) {
        llama_edgekv_pins_of(buffer_of(*kv))->unpin();
        in_children(buffer_of(*kv), true);
    }
}

bool llama_edgekv_pins_rows(const llama_context * lctx) { return pinned_cache(lctx) != nullptr; }
