// Mode evict: the pages whose rows a layer gave back to the system, because none of its heads attends them or they hold no tokens.
#pragma once

#include "cache/shape.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace edgekv {

class Gone {
public:
    void shape(const PageShape & shape) {  // nothing is gone; throws std::bad_alloc
        dims = shape;
        gone.assign(static_cast<size_t>(dims.n_layers) * dims.n_pages, 0);
    }

    bool is(int layer, int page) const { return gone[at(layer, page)] != 0; }
    bool any(int layer) const {
        const auto first = gone.begin() + static_cast<std::ptrdiff_t>(at(layer, 0));
        return std::find(first, first + dims.n_pages, 1) != first + dims.n_pages;
    }
    void set(int layer, int page, bool is_gone) { gone[at(layer, page)] = is_gone; }
    bool in_any_layer(int page) const {
        for (int layer = 0; layer < dims.n_layers; ++layer) {
            if (is(layer, page)) {
                return true;
            }
        }
        return false;
    }

    // The run of gone pages around one, in its stream: at most n_around more to either side.
    struct Run {
        int first, end;
    };
    Run around(int layer, int page, int n_around) const {
        const int stream = page / dims.pages_per_stream * dims.pages_per_stream;
        Run run = { page, page + 1 };
        while (run.first > stream && page - run.first < n_around && is(layer, run.first - 1)) {
            --run.first;
        }
        while (run.end < stream + dims.pages_per_stream && run.end - page <= n_around && is(layer, run.end)) {
            ++run.end;
        }
        return run;
    }

    size_t bytes() const { return gone.size(); }
    static size_t bytes_of(const PageShape & shape) { return static_cast<size_t>(shape.n_layers) * shape.n_pages; }

private:
    size_t at(int layer, int page) const {
        assert(dims.has(layer, 0, page));
        return static_cast<size_t>(layer) * dims.n_pages + page;
    }

    PageShape dims = {};
    std::vector<uint8_t> gone;  // [layer][page]
};

}  // namespace edgekv
