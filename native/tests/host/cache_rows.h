// K or V of a layer, filled with what a test wants.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "attend_cases.h"

namespace cases {

struct RowsShape {
    edgekv::CellType type;
    int head_dim, n_head_kv, n_cells;
    size_t head_gap, cell_gap;  // bytes behind each row, and behind the last of each cell
};

template <class Bytes>
struct CacheRows {
    Bytes bytes;  // ends where the last row does
    size_t stride_cell, stride_head;
    double largest = 0.0;  // of all values
    double longest = 0.0;  // of all rows, as vectors
};

// value(cell, head, i) is asked once for each channel, in the order in which they lie; spoil(cell, row) may then change a row that nobody
// may read.
template <class Bytes, class Value, class Spoil>
CacheRows<Bytes> cache_rows(const RowsShape & shape, const Value & value, const Spoil & spoil) {
    CacheRows<Bytes> out;
    const size_t bytes = row_bytes(shape.type, shape.head_dim);
    out.stride_head = bytes + shape.head_gap;
    out.stride_cell = out.stride_head * static_cast<size_t>(shape.n_head_kv) + shape.cell_gap;
    out.bytes.resize(out.stride_cell * static_cast<size_t>(shape.n_cells - 1) +
                     out.stride_head * static_cast<size_t>(shape.n_head_kv - 1) + bytes);
    std::vector<float> row(static_cast<size_t>(shape.head_dim));
    for (int cell = 0; cell < shape.n_cells; ++cell) {
        for (int h = 0; h < shape.n_head_kv; ++h) {
            double norm = 0.0;
            for (int i = 0; i < shape.head_dim; ++i) {
                const float x = value(cell, h, i);
                row[static_cast<size_t>(i)] = x;
                norm += x * x;
                out.largest = std::max(out.largest, std::fabs(static_cast<double>(x)));
            }
            out.longest = std::max(out.longest, std::sqrt(norm));
            char * const at = out.bytes.data() + static_cast<size_t>(cell) * out.stride_cell + static_cast<size_t>(h) * out.stride_head;
            store_row(shape.type, row, at);
            spoil(cell, at);
        }
    }
    return out;
}

}  // namespace cases
