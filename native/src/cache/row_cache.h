// Copies in memory of the rows that were read most lately: single rows of one KV head, each with its K and its V.
//
// Slots form sets of kWays. A row belongs to one set, by a hash of its number, and takes the place of the row there that was read longest ago. All
// layers and heads share the slots, because some read five times as many rows as others. Rows of the running ubatch keep their places.
#pragma once

#include "cache/buffer.h"

#include <cstdint>

namespace edgekv {

class RowCache {
    struct Entry {
        uint64_t row  : 40;  // plus 1; 0: none
        uint64_t used : 24;  // the low bits of the number of the ubatch that read it last
    };

public:
    static constexpr int    kWays       = 8;
    static constexpr size_t kEntryBytes = sizeof(Entry);  // of a slot, beside its row

    // Memory for rows of row_bytes at most; those that were there are lost. false: out of memory, nothing changed.
    bool reserve(size_t n_bytes, size_t row_bytes);
    bool has_slots() const { return n_sets > 0; }

    // `now` counts ubatches, from 1. One thread at a time.
    struct Place {
        int32_t slot;    // -1: none is free now
        bool    is_new;  // the row must be written there
    };
    Place place(uint64_t row, uint64_t now);
    void  forget(uint64_t row);  // it changed

    char * slot(int32_t i) const { return rows.data() + static_cast<size_t>(i) * slot_bytes; }
    size_t stride() const { return slot_bytes; }
    size_t bytes() const { return rows.size() + entries.size(); }

private:
    Entry * set_of(uint64_t row) const;

    uint64_t n_sets = 0;
    size_t   slot_bytes = 0;
    Buffer   rows, entries;
};

}  // namespace edgekv
