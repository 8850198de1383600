#include "cache/drops.h"

#include <new>

namespace edgekv {

void Drops::shape(const PageShape & shape) {
    dims = shape;
    dropped = {};
    if (!dropped.reserve(dims.n_entries())) {
        throw std::bad_alloc();
    }
    of_layer.assign(dims.n_layers, 0);
}

void Drops::drop(const edgekv_move & move) {
    assert(dims.has(move.layer, move.head, move.page));
    uint8_t & one = of_entry(dims.entry(move.layer, move.head, move.page));
    of_layer[move.layer] += one == 0;
    one = 1;
}

void Drops::undrop(int page) {
    assert(page >= 0 && page < dims.n_pages);
    for (int head = 0; head < dims.n_layers * dims.n_heads; ++head) {  // of all layers
        uint8_t & one = of_entry(static_cast<size_t>(head) * dims.n_pages + page);
        of_layer[head / dims.n_heads] -= one;
        one = 0;
    }
}

}  // namespace edgekv
