// The pages of a context without their bytes, for either plane.
#pragma once

#include "cache/cells.h"
#include "cache/pins.h"
#include "cache/stale.h"
#include "cache/table.h"

namespace edgekv {

struct Pages {
    Cells cells;
    StaleGroups stale;
    Pins pins;
    Table table;

    // step_tokens: see Table; throws std::bad_alloc
    void shape(const PageShape & shape, int step_tokens) {
        cells.shape(shape);
        stale.shape(shape);
        pins.shape(shape);
        table.shape(shape, step_tokens);
    }

    // Decoding thread, before a ubatch is computed. Finds the changes since the previous call. `n_stored`: see Table; `sketches`: whether the
    // ubatch builds sketches.
    void sync(const llama_context * lctx, int n_stored, bool sketches) {
        cells.sync(lctx, stale, table.n_slots() > 0);
        if (sketches) {
            stale.find(cells);
        } else {
            stale.find_none();
        }
        pins.sync(lctx, cells);
        table.sync(cells, n_stored);
    }

    uint64_t n_looked() const { return cells.n_looked() + stale.n_looked(); }
    size_t bytes() const { return cells.bytes() + stale.bytes() + pins.bytes() + table.bytes(); }
    static size_t most_bytes(const PageShape & shape, int n_slots) {  // if anything is pinned
        return Cells::bytes_of(shape) + StaleGroups::bytes_of(shape) + Pins::most_bytes(shape) + Table::bytes_of(shape, n_slots);
    }
};

}  // namespace edgekv
