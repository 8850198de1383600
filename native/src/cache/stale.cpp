#include "cache/stale.h"

#include <algorithm>

namespace edgekv {

void StaleGroups::shape(const PageShape & shape) {
    dims = shape;
    bits.assign(static_cast<size_t>(dims.n_stream) * dims.n_groups(), 0);
    ids.clear();
    ids.reserve(bits.size());
    growing.clear();
    open.clear();
    building.clear();
}

void StaleGroups::mark_all() {
    for (size_t id = 0; id < bits.size(); ++id) {
        mark_id(static_cast<int32_t>(id));
    }
}

void StaleGroups::mark_growing(int stream, int group) {
    const size_t id = id_of(stream, group);
    if (!(bits[id] & kGrows)) {
        bits[id] |= kGrows;
        growing.push_back(static_cast<int32_t>(id));
    }
}

void StaleGroups::find(const Cells & cells) {
    for (const int32_t id : open) {
        bits[id] &= ~kOpen;
    }
    open.clear();
    building.clear();
    for (const int32_t id : ids) {
        const int       s         = id / dims.n_groups();
        const int       group     = id % dims.n_groups();
        const int32_t * positions = cells.positions(s);
        uint64_t        valid     = 0;
        if (!positions) {
            continue;
        }
        looked += kGroupCells;
        for (int j = 0; j < kGroupCells; ++j) {
            const int c = group * kGroupCells + j;
            valid |= c < dims.n_cells && positions[c] >= 0 ? uint64_t{1} << j : 0;
        }
        if (valid == 0) {
            bits[id] &= ~kStale;
        } else if (~valid != 0 && (bits[id] & kGrows)) {
            bits[id] |= kOpen;
            open.push_back(id);
        } else {
            building.push_back({ s, group, valid });
        }
    }
    forget_built();
    forget_growing();
}

void StaleGroups::find_none() {
    building.clear();
    forget_growing();
}

void StaleGroups::built() {
    for (const StaleGroup & group : building) {
        bits[id_of(group.stream, group.group)] &= ~kStale;
    }
    forget_built();
}

void StaleGroups::forget_built() {
    ids.erase(std::remove_if(ids.begin(), ids.end(), [&](int32_t id) { return !(bits[id] & kStale); }), ids.end());
}

void StaleGroups::forget_growing() {
    for (const int32_t id : growing) {
        bits[id] &= ~kGrows;
    }
    growing.clear();
}

}  // namespace edgekv
