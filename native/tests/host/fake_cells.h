// The cells of a cache without llama.cpp: what the glue would show of them, with the clock that libllama has.
#pragma once

#include <cstdint>
#include <vector>

#include "llama-edgekv-cells.h"
#include "llama-edgekv.h"

namespace edgekv {

struct FakeCells {
    std::vector<int32_t> pos;
    llama_edgekv_clock clock;

    explicit FakeCells(int n_cells) : pos(n_cells, -1) {
        clock.resize(n_cells);
        clock.touch_all();
    }

    void store(int cell, int32_t position) {
        clock.touch(cell);  // pos_set
        clock.touch(cell);  // seq_add
        pos[cell] = position;
    }

    void remove(int cell) {
        clock.touch(cell);
        pos[cell] = -1;
    }
};

using FakeCache = std::vector<FakeCells>;  // [stream]

inline const llama_context * as_context(const FakeCache & cache) { return reinterpret_cast<const llama_context *>(&cache); }

inline const FakeCache & cache_of(const llama_context * lctx) { return *reinterpret_cast<const FakeCache *>(lctx); }

}  // namespace edgekv

bool llama_edgekv_get_cells(const llama_context * lctx, uint32_t stream, llama_edgekv_cells * out) {
    const auto & cells = edgekv::cache_of(lctx)[stream];
    *out = {};
    out->n_cells = static_cast<uint32_t>(cells.pos.size());
    out->n_stream = static_cast<uint32_t>(edgekv::cache_of(lctx).size());
    out->pos = cells.pos.data();
    out->changed = cells.clock.times().data();
    out->now = cells.clock.now();
    return true;
}

int llama_edgekv_get_changed(const llama_context * lctx, uint32_t stream, uint64_t since, llama_edgekv_range * out, int capacity) {
    const auto & cells = edgekv::cache_of(lctx)[stream];
    return cells.clock.ranges_since(since, static_cast<uint32_t>(cells.pos.size()), out, capacity);
}
