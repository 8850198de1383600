// The axes of every per-page array of a context: [layer][head][page]. The pages of a stream lie side by side.
#pragma once

#include "kernels/sketch/sketch.h"

#include <cstddef>

namespace edgekv {

inline size_t slot_bytes(size_t row_bytes, int page_tokens) {  // row_bytes: K and V of one token and head
    return (row_bytes * page_tokens + 63) / 64 * 64;
}

struct PageShape {
    int n_layers, n_heads;    // hooked layers; the maximum number of KV heads over these
    int n_stream, n_cells;    // cells of a stream
    int page_tokens;
    int pages_per_stream, n_pages;
    size_t slot_bytes;        // of the largest layer

    size_t n_entries() const { return static_cast<size_t>(n_layers) * n_heads * n_pages; }
    size_t entry(int layer, int head, int page) const { return (static_cast<size_t>(layer) * n_heads + head) * n_pages + page; }
    size_t entry_of_stream(int layer, int stream, int head) const { return entry(layer, head, stream * pages_per_stream); }
    int n_groups() const { return (pages_per_stream * page_tokens + kGroupCells - 1) / kGroupCells; }  // of a stream

    bool has(int layer, int head, int page) const {
        return layer >= 0 && layer < n_layers && head >= 0 && head < n_heads && page >= 0 && page < n_pages;
    }
    bool has_stream(int stream) const { return stream >= 0 && stream < n_stream; }
};

inline PageShape shape_of_cells(int n_stream, int n_cells, int page_tokens) {  // without layers
    PageShape shape = {};
    shape.n_stream         = n_stream;
    shape.n_cells          = n_cells;
    shape.page_tokens      = page_tokens;
    shape.pages_per_stream = (n_cells + page_tokens - 1) / page_tokens;
    shape.n_pages          = n_stream * shape.pages_per_stream;
    return shape;
}

}  // namespace edgekv
