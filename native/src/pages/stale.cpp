#include "pages/stale.h"

#include <algorithm>

namespace edgekv {

void StaleGroups::shape(const PageShape & shape) {
    dims = shape;
    open.assign(dims.n_stream, -1);
    bits.assign(static_cast<size_t>(dims.n_stream) * dims.n_groups(), 0);
    ids.clear();
    ids.reserve(bits.size());
    building.clear();
}

void StaleGroups::mark_all() {
    for (size_t id = 0; id < bits.size(); ++id) {
        mark_id(static_cast<int32_t>(id));
    }
}

void StaleGroups::find(const Cells & cells) {
    std::vector<int> filling(dims.n_stream, -1);

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
            bits[id] = 0;
            continue;
        }
        if (~valid != 0) {
            filling[s] = std::max(filling[s], group);
        }
        building.push_back({ s, group, valid });
    }
    forget_built();
    open = filling;
    building.erase(std::remove_if(building.begin(), building.end(), [&](const StaleGroup & g) { return is_open(g.stream, g.group); }),
                   building.end());
}

void StaleGroups::built() {
    for (const StaleGroup & group : building) {
        bits[static_cast<size_t>(group.stream) * dims.n_groups() + group.group] = 0;
    }
    forget_built();
}

void StaleGroups::forget_built() { ids.erase(std::remove_if(ids.begin(), ids.end(), [&](int32_t id) { return !bits[id]; }), ids.end()); }

}  // namespace edgekv
