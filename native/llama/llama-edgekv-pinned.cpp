// Which rows are pinned, and when. A graph views each stream of its ubatch up to the same cell, a multiple of 256, kernels copy whole pages, and a policy moves
// pages of every stream. So rows are pinned where cells get tokens: in find_slot(), where a stream was copied, where a state was loaded.
#include "llama-edgekv-pinned.h"
#include "llama-edgekv-access.h"
#include "llama-edgekv-home.h"
#include "llama-edgekv-mapping.h"

#include "llama-impl.h"

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
llama_kv_cache * pinned_cache(const llama_context * lctx) {
    llama_kv_cache * kv = llama_edgekv_access::cache(lctx);
    return kv && llama_edgekv_is_pinned(*kv) ? kv : nullptr;
}

// cells of a part
uint32_t part_of(const std::vector<const ggml_tensor *> & tensors, const llama_edgekv_pinner & how, uint32_t n_cells) {
    size_t of_cell = 0;
    for (const ggml_tensor * rows : tensors) {
        of_cell += rows->nb[1];
    }
    const size_t most = std::min<size_t>(how.part_bytes/std::max<size_t>(of_cell, 1), n_cells/kParts)/kView*kView;
    return static_cast<uint32_t>(std::max<size_t>(most, kView));
}

ggml_backend_buffer_t buffer_of(const llama_kv_cache & kv) { return llama_edgekv_access::layers(kv)[0].k->buffer; }  // one mapping has all layers

uint32_t round_up(uint32_t n, uint32_t unit) { return (n + unit - 1)/unit*unit; }

// Cells of a stream that are not pinned.
struct rest {
    uint32_t stream, first, end;
};

std::vector<rest> rests_of(const llama_kv_cache & kv, const std::vector<const ggml_tensor *> & tensors, const llama_edgekv_ends & ends) {
    const llama_edgekv_pinned & pinned = *llama_edgekv_pins_of(buffer_of(kv));
    const uint32_t part = part_of(tensors, pinned.how, kv.get_size());
    uint32_t most = 1;
    for (const auto & [stream, end] : ends) {
        most = std::max(most, end);
    }
    const uint32_t pages = round_up(round_up(most, kView), std::max(pinned.how.page_tokens, 1u));
    const uint32_t end   = std::min(round_up(pages, part), kv.get_size());
    std::vector<rest> found;
    for (const auto & [stream, _] : ends) {
        if (end > pinned.cells[stream]) {
            found.push_back({ stream, pinned.cells[stream], end });
        }
    }
    return found;
}

// false: something was refused
bool pin_rests(const llama_kv_cache & kv, const std::vector<const ggml_tensor *> & tensors, const std::vector<rest> & rests) {
    llama_edgekv_pinned & pinned = *llama_edgekv_pins_of(buffer_of(kv));
    for (const auto & [s, first, end] : rests) {
        for (const ggml_tensor * rows : tensors) {
            const uintptr_t stream = reinterpret_cast<uintptr_t>(rows->data) + s*rows->nb[2];
            if (!pinned.pin(stream + first*rows->nb[1], stream + end*rows->nb[1], buffer_of(kv))) {
                return false;
            }
        }
        pinned.cells[s] = end;
    }
    return true;
}

size_t bytes_of(const std::vector<const ggml_tensor *> & tensors, const std::vector<rest> & rests) {
    size_t sum = 0;
    for (const auto & [stream, first, end] : rests) {
        sum += llama_edgekv_taken(tensors, end) - llama_edgekv_taken(tensors, first);
    }
    return sum;
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
    lost.clear();
    how = {};
}

bool llama_edgekv_is_pinned(const ggml_tensor * rows) {
    const auto * pinned = rows && rows->buffer ? llama_edgekv_pins_of(rows->buffer) : nullptr;
    return pinned && pinned->on();
}

bool llama_edgekv_is_pinned(const llama_kv_cache & kv) {
    const auto & layers = llama_edgekv_access::layers(kv);
    return !llama_edgekv_access::is_guest(kv) && !layers.empty() && llama_edgekv_is_pinned(layers[0].k);
}

size_t llama_edgekv_to_pin(const llama_kv_cache & kv, const llama_edgekv_ends & ends) {
    const auto tensors = rows_of(kv);
    return bytes_of(tensors, rests_of(kv, tensors, ends));
}

bool llama_edgekv_pin_cells(const llama_kv_cache & kv, const llama_edgekv_ends & ends, size_t n_tokens) {
    const auto tensors = rows_of(kv);
    const auto rests   = rests_of(kv, tensors, ends);
    const size_t sum   = bytes_of(tensors, rests);
    if (!llama_edgekv_may_take(static_cast<int64_t>(sum), false)) {
        llama_edgekv_refuse(n_tokens, sum);
        return false;
    }
    if (!pin_rests(kv, tensors, rests)) {
        llama_edgekv_refuse(n_tokens, 0);
        return false;
    }
    return true;
}

void llama_edgekv_pin_used(llama_kv_cache & kv) {
    if (!llama_edgekv_is_pinned(kv)) {
        return;
    }
    llama_edgekv_pinned & pinned = *llama_edgekv_pins_of(buffer_of(kv));
    for (uint32_t s = 0; s < pinned.cells.size(); ++s) {
        const llama_kv_cells & cells = llama_edgekv_access::cells(kv, s);
        const uint32_t end = cells.used_max_p1();
        if (end == 0) {
            continue;
        }
        pinned.lost[s] = end > pinned.cells[s] && !llama_edgekv_pin_cells(kv, { { s, end } }, cells.get_used());
        if (pinned.lost[s]) {
            LLAMA_LOG_ERROR("edgekv: stream %u loses its %u tokens\n", s, cells.get_used());
            llama_edgekv_access::forget(kv, s);
        }
    }
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
    auto * pinned = llama_edgekv_access::is_guest(kv) ? nullptr : llama_edgekv_pins_of(buffer_of(kv));
    if (!pinned) {
        return true;
    }
    const uint32_t n_streams = llama_edgekv_access::n_streams(kv);
    pinned->how = pinner;
    pinned->cells.assign(n_streams, 0);
    pinned->lost.assign(n_streams, false);
    edgekv_set_pieces(piece_of);
    in_children(buffer_of(kv), false);
    const auto tensors = rows_of(kv);
    bool all = true;
    for (uint32_t s = 0; s < n_streams; ++s) {
        const uint32_t end = std::max(llama_edgekv_access::cells(kv, s).used_max_p1(), s == 0 ? 1u : 0u);
        all = all && (end == 0 || pin_rests(kv, tensors, rests_of(kv, tensors, { { s, end } })));
    }
    if (!all) {
        llama_edgekv_unpin_rows(lctx);
    }
    return all;
}

void llama_edgekv_unpin_rows(llama_context * lctx) {
    if (const llama_kv_cache * kv = pinned_cache(lctx)) {
        llama_edgekv_pins_of(buffer_of(*kv))->unpin();
        in_children(buffer_of(*kv), true);
    }
}

bool llama_edgekv_pins_rows(const llama_context * lctx) { return pinned_cache(lctx) != nullptr; }

bool llama_edgekv_is_reached(const llama_context * lctx, uint32_t stream, uint32_t end) {
    const llama_kv_cache * kv = pinned_cache(lctx);
    return !kv || end <= llama_edgekv_pins_of(buffer_of(*kv))->cells[stream];
}
