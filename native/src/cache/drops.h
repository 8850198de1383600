// Mode evict: the pages that a head no longer attends.
#pragma once

#include "edgekv.h"
#include "cache/buffer.h"
#include "cache/shape.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <vector>

namespace edgekv {

class Drops {
public:
    void shape(const PageShape & shape);  // nothing is dropped; throws std::bad_alloc

    void drop(const edgekv_move & move);
    void undrop(int page);  // for all layers and heads: the page has new content

    bool any() const { return std::any_of(of_layer.begin(), of_layer.end(), [](int64_t n) { return n > 0; }); }
    bool all(int layer, int page, int n_heads) const {  // the layer's first n_heads heads dropped the page
        for (int head = 0; head < n_heads; ++head) {
            if (!data()[dims.entry(layer, head, page)]) {
                return false;
            }
        }
        return true;
    }
    bool any(int layer) const { assert(layer >= 0 && layer < dims.n_layers); return of_layer[layer] > 0; }
    const uint8_t * of(int layer, int stream, int head) const {  // [page of the stream]
        assert(dims.has(layer, head, 0) && dims.has_stream(stream));
        return data() + dims.entry_of_stream(layer, stream, head);
    }
    const uint8_t * data() const { return reinterpret_cast<const uint8_t *>(dropped.data()); }
    size_t bytes() const { return dims.n_entries(); }
    static size_t bytes_of(const PageShape & shape) { return shape.n_entries(); }

private:
    PageShape dims = {};
    uint8_t & of_entry(size_t entry) { return reinterpret_cast<uint8_t *>(dropped.data())[entry]; }

    Buffer dropped;
    std::vector<int64_t> of_layer;
};

}  // namespace edgekv
