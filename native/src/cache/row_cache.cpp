#include "cache/row_cache.h"

#include <algorithm>
#include <limits>

namespace edgekv {

bool RowCache::reserve(size_t n_bytes, size_t row_bytes) {
    const size_t most   = std::numeric_limits<int32_t>::max();
    const size_t sets   = std::min(n_bytes / (row_bytes + kEntryBytes), most) / kWays;
    Buffer of_rows, of_entries;
    if (sets > 0 && !(of_rows.reserve(sets * kWays * row_bytes) && of_entries.reserve(sets * kWays * kEntryBytes))) {
        return false;
    }
    rows       = std::move(of_rows);
    entries    = std::move(of_entries);
    n_sets     = sets;
    slot_bytes = row_bytes;
    return true;
}

// Neighbours lie in different sets, and so do rows a power of two apart (Knuth's multiplicative hash).
RowCache::Entry * RowCache::set_of(uint64_t row) const {
    const uint64_t hash = row * 0x9e3779b97f4a7c15u >> 32;
    return reinterpret_cast<Entry *>(entries.data()) + (hash * n_sets >> 32) * kWays;
}

RowCache::Place RowCache::place(uint64_t row, uint64_t now) {
    constexpr uint64_t kUsed = (uint64_t{1} << 24) - 1;
    Entry * const set    = set_of(row);
    Entry *       oldest = set;
    const auto    slot   = [&](const Entry * entry) { return static_cast<int32_t>(entry - reinterpret_cast<Entry *>(entries.data())); };
    const auto    age    = [&](const Entry & entry) { return entry.row == 0 ? kUsed + 1 : (now - entry.used) & kUsed; };
    for (Entry * entry = set; entry < set + kWays; ++entry) {
        if (entry->row == row + 1) {
            entry->used = now & kUsed;
            return { slot(entry), false };
        }
        if (age(*entry) > age(*oldest)) {
            oldest = entry;
        }
    }
    if (age(*oldest) == 0) {
        return { -1, false };
    }
    oldest->row  = row + 1;
    oldest->used = now & kUsed;
    return { slot(oldest), true };
}

void RowCache::forget(uint64_t row) {
    Entry * const set = set_of(row);
    for (Entry * entry = set; entry < set + kWays; ++entry) {
        if (entry->row == row + 1) {
            *entry = {};
        }
    }
}

}  // namespace edgekv
