#include "attention/cpu/read_ahead.h"

#include "state/state.h"

#include "llama-edgekv-mapping.h"

#include <algorithm>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace edgekv {

#ifdef __linux__

namespace {

uintptr_t page_bytes() {
    static const uintptr_t bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

void advise(uintptr_t first, uintptr_t end, int advice) {
    if (first < end) {
        madvise(reinterpret_cast<void *>(first), end - first, advice);
    }
}

size_t part_of(size_t n, int ith, int nth) { return n * static_cast<size_t>(ith) / static_cast<size_t>(nth); }

}  // namespace

ReadAhead::Part::Part(const ggml_tensor * rows, int stream, size_t head_bytes) :
    base(reinterpret_cast<uintptr_t>(rows->data) + stream * rows->nb[2]), cell_bytes(rows->nb[1]), head_bytes(head_bytes) {
    n_pages = page_of(base + rows->nb[2] - 1) + 1;
    wanted.resize((n_pages + 63) / 64);
}

uintptr_t ReadAhead::Part::page_of(uintptr_t address) const { return address / page_bytes() - base / page_bytes(); }

void ReadAhead::Part::mark(const AttendRows & rows, int n_tokens, int n_heads, size_t first_word, size_t end_word) {
    std::fill(wanted.begin() + first_word, wanted.begin() + end_word, 0);
    for (int list = 0; list < n_tokens * n_heads; ++list) {
        const int32_t * cells = rows.cells + list * rows.stride;
        const uintptr_t head  = base + list % n_heads * head_bytes;
        for (int i = 0; i < rows.n_rows[list]; ++i) {
            const uintptr_t row = head + cells[i] * cell_bytes;
            for (uintptr_t page = page_of(row); page <= page_of(row + head_bytes - 1); ++page) {
                if (page / 64 >= first_word && page / 64 < end_word) {
                    wanted[page / 64] |= uint64_t{1} << page % 64;
                }
            }
        }
    }
}

void ReadAhead::Part::ask(size_t first_word, size_t end_word) const {
    constexpr size_t kWords = 64;  // the pages that the kernel is asked about at once
    const uintptr_t  origin = base / page_bytes() * page_bytes();
    unsigned char    there[kWords * 64];
    uintptr_t        first = 0, end = 0;  // of the read to come; pages
    for (size_t chunk = first_word; chunk < end_word; chunk += kWords) {
        size_t from = chunk, to = std::min(chunk + kWords, end_word);
        while (from < to && wanted[from] == 0) {
            ++from;
        }
        while (from < to && wanted[to - 1] == 0) {
            --to;
        }
        const uintptr_t begin = from * 64;
        const uintptr_t span  = from < to ? (to - 1) * 64 + 64 - __builtin_clzll(wanted[to - 1]) - begin : 0;
        if (span == 0 || mincore(reinterpret_cast<void *>(origin + begin * page_bytes()), span * page_bytes(), there) != 0) {
            continue;
        }
        for (size_t word = from; word < to; ++word) {
            for (uint64_t left = wanted[word]; left != 0; left &= left - 1) {
                const uintptr_t page = word * 64 + __builtin_ctzll(left);
                if (there[page - begin] & 1) {
                    continue;
                }
                if (page != end) {
                    advise(origin + first * page_bytes(), origin + end * page_bytes(), MADV_WILLNEED);
                    first = page;
                }
                end = page + 1;
            }
        }
    }
    advise(origin + first * page_bytes(), origin + end * page_bytes(), MADV_WILLNEED);
}

ReadAhead::ReadAhead(const State & ctx) {
    for (const Layer * layer : ctx.hooked) {
        auto & streams = layers.emplace_back();
        for (int s = 0; llama_edgekv_on_disk(layer->llama.k) && s < ctx.shape.n_stream; ++s) {
            auto & parts = streams.emplace_back();
            parts.emplace_back(layer->llama.k, s, layer->k_row_bytes());
            if (layer->llama.v) {
                parts.emplace_back(layer->llama.v, s, layer->v_row_bytes());
            }
        }
    }
}

void ReadAhead::enter(int layer, bool reads_rows) const {
    for (const auto & parts : layers[layer]) {
        for (const Part & part : parts) {
            const uintptr_t first = part.base / page_bytes() * page_bytes();
            advise(first, first + part.n_pages * page_bytes(), reads_rows ? MADV_RANDOM : MADV_NORMAL);
        }
    }
}

void ReadAhead::enter(bool reads_rows) const {
    for (size_t layer = 0; layer < layers.size(); ++layer) {
        enter(static_cast<int>(layer), reads_rows);
    }
}

void ReadAhead::rows(int layer, int stream, const AttendRows & rows, int n_tokens, int n_heads, int ith, int nth) {
    if (layers[layer].empty()) {
        return;
    }
    for (Part & part : layers[layer][stream]) {
        const size_t first = part_of(part.wanted.size(), ith, nth), end = part_of(part.wanted.size(), ith + 1, nth);
        part.mark(rows, n_tokens, n_heads, first, end);
        part.ask(first, end);
    }
}

void ReadAhead::whole(int layer, int stream, int n_cells, int ith, int nth) const {
    if (layers[layer].empty()) {
        return;
    }
    for (const Part & part : layers[layer][stream]) {
        const size_t    n_pages = part.page_of(part.base + n_cells * part.cell_bytes - 1) + 1;
        const uintptr_t origin  = part.base / page_bytes() * page_bytes();
        advise(origin + part_of(n_pages, ith, nth) * page_bytes(), origin + part_of(n_pages, ith + 1, nth) * page_bytes(), MADV_WILLNEED);
    }
}

#else  // there is no home in a file

ReadAhead::ReadAhead(const State & ctx) : layers(ctx.hooked.size()) {}

void ReadAhead::enter(bool) const {}

void ReadAhead::enter(int, bool) const {}

void ReadAhead::rows(int, int, const AttendRows &, int, int, int, int) {}

void ReadAhead::whole(int, int, int, int, int) const {}

#endif

}  // namespace edgekv
