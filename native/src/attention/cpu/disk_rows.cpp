#include "attention/cpu/disk_rows.h"

#include "attention/cpu/host_plane.h"
#include "state/state.h"

#include "llama-edgekv-mapping.h"

#include <algorithm>
#include <cerrno>

#ifdef __linux__
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>
#endif

namespace edgekv {

#ifdef __linux__

namespace {

constexpr size_t kPage = 4096;  // what a disk reads at least

// In a list's slots: a row that has a slot and is not there yet. The function is its own inverse.
constexpr int32_t missing(int32_t slot) { return -2 - slot; }

// Whole pages of a file that follow each other, given one row after the other in ascending order; `use` gets each run of them, the last from end().
template <typename Use>
class PageRuns {
public:
    explicit PageRuns(Use use) : use(use) {}

    void add(size_t at, size_t n_bytes) {
        if (at / kPage > end_page) {
            end();
            first_page = at / kPage;
        }
        end_page = (at + n_bytes - 1) / kPage + 1;
    }
    void end() {
        if (first_page < end_page) {
            use(static_cast<off_t>(first_page * kPage), static_cast<off_t>((end_page - first_page) * kPage));
        }
        first_page = end_page = 0;
    }

private:
    Use use;
    size_t first_page = 0, end_page = 0;
};

}  // namespace

uint64_t DiskRows::OfLayer::row(const State & ctx, int stream, int head, int cell) const {
    return first_row + (static_cast<uint64_t>(stream) * n_heads + head) * ctx.shape.n_cells + cell;
}

DiskRows::DiskRows(State & ctx) : ctx(ctx), layers(ctx.hooked.size()) {
    uint64_t n_rows = 0;
    for (const Layer * layer : ctx.hooked) {
        if (!llama_edgekv_on_disk(layer->llama.k) || layer->listed()) {
            continue;
        }
        OfLayer & of  = layers[layer->info.index];
        of.layer      = layer;
        of.n_heads    = layer->info.n_head_kv;
        of.k_bytes    = layer->k_row_bytes();
        of.row_bytes  = of.k_bytes + layer->v_row_bytes();
        of.head_bytes = (ctx.shape.n_cells * of.row_bytes + kPage - 1) / kPage * kPage;
        of.first_byte = file_bytes;
        of.first_row  = n_rows;
        file_bytes   += static_cast<size_t>(ctx.shape.n_stream) * of.n_heads * of.head_bytes;
        n_rows       += static_cast<uint64_t>(ctx.shape.n_stream) * of.n_heads * ctx.shape.n_cells;
    }
}

DiskRows::~DiskRows() {
    if (file >= 0) {
        close(file);
    }
}

bool DiskRows::reserve(size_t n_bytes) {
    size_t row_bytes = 0;
    const ggml_tensor * rows = nullptr;
    for (const OfLayer & of : layers) {
        row_bytes = std::max(row_bytes, of.row_bytes);
        rows      = of.layer ? of.layer->llama.k : rows;
    }
    if (!rows) {
        return true;
    }
    if (!cache.reserve(n_bytes, row_bytes)) {
        return false;
    }
    if (!cache.has_slots() && file >= 0) {
        close(file);
        file = -1;
    } else if (cache.has_slots() && file < 0) {
        if ((file = llama_edgekv_file_beside(rows, file_bytes)) < 0) {
            return false;
        }
        posix_fadvise(file, 0, 0, POSIX_FADV_RANDOM);
        ctx.pages.stale.mark_all();
    }
    return true;
}

void DiskRows::write_group(const OfLayer & of, int stream, int head, int group) {
    const int first = group * kGroupCells, n = std::min(kGroupCells, ctx.shape.n_cells - first);
    iovec     parts[2 * kGroupCells];
    int       n_parts = 0;
    const auto add = [&](const ggml_tensor * rows, size_t n_bytes, int cell) {
        parts[n_parts++] = { static_cast<char *>(rows->data) + stream * rows->nb[2] + cell * rows->nb[1] + head * n_bytes, n_bytes };
    };
    for (int cell = first; cell < first + n; ++cell) {
        add(of.layer->llama.k, of.k_bytes, cell);
        if (of.layer->llama.v) {
            add(of.layer->llama.v, of.row_bytes - of.k_bytes, cell);
        }
    }
    moved(pwritev(file, parts, n_parts, static_cast<off_t>(of.at(stream, head, first))), n * of.row_bytes);
}

void DiskRows::write(int layer, int ith, int nth) {
    const OfLayer & of = layers[layer];
    for (const StaleGroup & stale : ctx.pages.stale.to_build()) {
        for (int head = ith; head < of.n_heads; head += nth) {
            write_group(of, stale.stream, head, stale.group);
            std::lock_guard<std::mutex> lock(placing);
            for (int i = 0; i < kGroupCells; ++i) {
                cache.forget(of.row(ctx, stale.stream, head, stale.group * kGroupCells + i));
            }
        }
    }
}

// A file's bytes come and go whole, unless its disk fails.
void DiskRows::moved(ptrdiff_t n_bytes, size_t wanted) {
    if (n_bytes != static_cast<ptrdiff_t>(wanted)) {
        failed.store(n_bytes < 0 ? errno : EIO, std::memory_order_relaxed);
    }
}

void DiskRows::bring(int layer, int stream, const RowLists & lists, AttendHits * hits, uint64_t now, int ith, int nth) {
    const OfLayer & of   = layers[layer];
    const auto      each = [&](auto && use) {
        for (int head = ith; head < of.n_heads; head += nth) {
            for (int token = 0; token < lists.n_tokens; ++token) {
                const size_t list = static_cast<size_t>(token) * of.n_heads + head;
                use(head, lists.cells_of(list), lists.n_rows_of(list), lists.slots_of(list));
            }
        }
    };
    each([&](int head, const int32_t * cells, int n, int32_t * slots) {
        {
            std::lock_guard<std::mutex> lock(placing);
            for (int i = 0; i < n; ++i) {
                const bool            open  = ctx.pages.stale.is_open(stream, cells[i] / kGroupCells);
                const RowCache::Place place = open ? RowCache::Place{ -1, false } : cache.place(of.row(ctx, stream, head, cells[i]), now);
                slots[i] = place.is_new ? missing(place.slot) : place.slot;
                hits[head].n_hits += place.slot >= 0 && !place.is_new;
            }
        }
        PageRuns wanted([&](off_t at, off_t n_bytes) { posix_fadvise(file, at, n_bytes, POSIX_FADV_WILLNEED); });
        for (int i = 0; i < n; ++i) {
            if (slots[i] < -1) {
                wanted.add(of.at(stream, head, cells[i]), of.row_bytes);
            }
        }
        wanted.end();
    });
    each([&](int head, const int32_t * cells, int n, int32_t * slots) {
        PageRuns taken([&](off_t at, off_t n_bytes) { posix_fadvise(file, at, n_bytes, POSIX_FADV_DONTNEED); });
        for (int i = 0; i < n; ++i) {
            if (slots[i] < -1) {
                const size_t at = of.at(stream, head, cells[i]);
                slots[i] = missing(slots[i]);
                moved(pread(file, cache.slot(slots[i]), of.row_bytes, static_cast<off_t>(at)), of.row_bytes);
                taken.add(at, of.row_bytes);
            }
        }
        taken.end();
    });
}

AttendCopies DiskRows::copies(int layer, const int32_t * slots) const { return { cache.slot(0), cache.stride(), layers[layer].k_bytes, slots }; }

#else  // there is no home in a file

DiskRows::DiskRows(State & ctx) : ctx(ctx), layers(ctx.hooked.size()) {}

DiskRows::~DiskRows() {}

bool DiskRows::reserve(size_t) { return true; }

void DiskRows::write(int, int, int) {}

void DiskRows::bring(int, int, const RowLists &, AttendHits *, uint64_t, int, int) {}

AttendCopies DiskRows::copies(int, const int32_t *) const { return {}; }

#endif

}  // namespace edgekv
