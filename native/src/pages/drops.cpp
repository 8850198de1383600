#include "pages/drops.h"

namespace edgekv {

void Drops::shape(const PageShape & shape) {
    dims = shape;
    dropped.assign(dims.n_entries(), 0);
    of_row.assign(dims.n_rows, 0);
    total = 0;
}

void Drops::drop(const edgekv_move & move) {
    assert(dims.has(move.row, move.head, move.page));
    uint8_t & one = dropped[dims.entry(move.row, move.head, move.page)];
    total            += one == 0;
    of_row[move.row] += one == 0;
    one = 1;
}

void Drops::undrop(int page) {
    assert(page >= 0 && page < dims.n_pages);
    for (int row = 0; row < dims.n_rows * dims.n_heads; ++row) {
        uint8_t & one = dropped[static_cast<size_t>(row) * dims.n_pages + page];
        total                    -= one;
        of_row[row / dims.n_heads] -= one;
        one = 0;
    }
}

}  // namespace edgekv
