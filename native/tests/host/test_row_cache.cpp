// RowCache against a map of what its slots hold, through random events.
#include "cache/row_cache.h"

#include "checks.h"

#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>

using namespace edgekv;

namespace {

constexpr size_t kRowBytes = 40;

// Writes the row's number into its slot, as who reads a file does.
void fill(const RowCache & cache, int32_t slot, uint64_t row) {
    for (size_t i = 0; i < kRowBytes / sizeof(row); ++i) {
        std::memcpy(cache.slot(slot) + i * sizeof(row), &row, sizeof(row));
    }
}

bool holds(const RowCache & cache, int32_t slot, uint64_t row) {
    for (size_t i = 0; i < kRowBytes / sizeof(row); ++i) {
        if (std::memcmp(cache.slot(slot) + i * sizeof(row), &row, sizeof(row)) != 0) {
            return false;
        }
    }
    return true;
}

// Rows of a ubatch stay until it ends, whatever comes; a row that is there is the one that was written, unless it changed.
void random_events(unsigned seed, uint64_t first_ubatch) {
    std::mt19937_64 random(seed);
    const int n_slots = RowCache::kWays * (1 + static_cast<int>(random() % 12));
    RowCache cache;
    CHECK(cache.reserve(n_slots * (kRowBytes + RowCache::kEntryBytes), kRowBytes), "memory");
    std::map<uint64_t, uint64_t> versions;  // of rows that changed
    const std::string name = "seed " + std::to_string(seed);
    size_t n_found = 0, n_new = 0, n_full = 0;
    for (uint64_t now = first_ubatch; now < first_ubatch + 60; ++now) {
        std::map<int32_t, uint64_t> taken;
        std::set<uint64_t> asked;
        for (int i = 0; i < 40; ++i) {
            const uint64_t row = random() % 3 == 0 ? random() % (uint64_t{1} << 39) : random() % 50;
            if (random() % 10 == 0 && asked.count(row) == 0) {
                cache.forget(row);
                versions[row] += uint64_t{1} << 40;
            }
            const RowCache::Place place = cache.place(row, now);
            if (place.slot < 0) {
                CHECK(!place.is_new && asked.count(row) == 0, "%s: a row of this ubatch lost its place", name.c_str());
                ++n_full;
                continue;
            }
            CHECK(place.slot < n_slots, "%s: a slot that there is not", name.c_str());
            CHECK(taken.count(place.slot) == 0 || taken[place.slot] == row, "%s: a slot of this ubatch was given away", name.c_str());
            taken[place.slot] = row;
            asked.insert(row);
            if (place.is_new) {
                fill(cache, place.slot, row + versions[row]);
            }
            n_new   += place.is_new;
            n_found += !place.is_new;
            CHECK(holds(cache, place.slot, row + versions[row]), "%s: the slot holds another row", name.c_str());
        }
    }
    CHECK(n_found > 100 && n_new > 100 && (n_slots > 40 || n_full > 0), "%s: some of each", name.c_str());
}

void the_one_read_longest_ago_leaves() {
    RowCache cache;
    CHECK(cache.reserve(RowCache::kWays * (kRowBytes + RowCache::kEntryBytes), kRowBytes), "memory");
    for (uint64_t row = 0; row < RowCache::kWays; ++row) {
        CHECK(cache.place(row, 1 + row).is_new, "empty at first");
    }
    CHECK(!cache.place(0, 20).is_new, "still there");
    CHECK(cache.place(100, 21).is_new, "another comes");
    CHECK(!cache.place(0, 22).is_new && cache.place(1, 23).is_new, "row 1 was read longest ago, row 0 lately");
    cache.forget(0);
    CHECK(cache.place(0, 24).is_new, "forgotten");
}

void sizes() {
    RowCache cache;
    CHECK(!cache.has_slots() && cache.bytes() == 0, "none at first");
    CHECK(cache.reserve(7 * (kRowBytes + RowCache::kEntryBytes), kRowBytes) && !cache.has_slots(), "less than a set");
    const size_t n_bytes = 1 << 20;
    CHECK(cache.reserve(n_bytes, kRowBytes) && cache.has_slots() && cache.bytes() <= n_bytes && cache.bytes() > n_bytes * 9 / 10, "as many as fit");
    cache.place(5, 1);
    CHECK(cache.reserve(n_bytes, kRowBytes) && cache.place(5, 2).is_new, "what was there is lost");
    std::set<int32_t> slots;
    for (uint64_t row = 0; row < 10 * n_bytes / kRowBytes; ++row) {
        slots.insert(cache.place(row, 3).slot);
    }
    slots.erase(-1);
    CHECK(slots.size() * (kRowBytes + RowCache::kEntryBytes) > n_bytes * 9 / 10, "each slot serves: %zu", slots.size());
    CHECK(cache.reserve(0, kRowBytes) && !cache.has_slots() && cache.bytes() == 0, "given back");
}

}  // namespace

int main() {
    for (unsigned seed = 0; seed < 40; ++seed) {
        random_events(seed, seed % 2 ? 1 : (uint64_t{1} << 24) - 30);  // also where the numbers of ubatches begin anew
    }
    the_one_read_longest_ago_leaves();
    sizes();
    return test::finish();
}
