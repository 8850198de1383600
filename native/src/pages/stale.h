// Stale groups of cells: some of their keys are newer than their sketch.
#pragma once

#include "pages/cells.h"

#include <cassert>
#include <cstdint>
#include <vector>

namespace edgekv {

struct StaleGroup {
    int stream;
    int group;
    uint64_t valid;  // a bit for each cell that holds a key
};

class StaleGroups {
public:
    void shape(const PageShape & shape);  // no group is stale then; throws std::bad_alloc

    void mark(int stream, int group) {
        assert(dims.has_stream(stream) && group >= 0 && group < dims.n_groups());
        mark_id(stream * dims.n_groups() + group);
    }
    void mark_all();
    bool is_stale(int stream, int group) const { return bits[static_cast<size_t>(stream) * dims.n_groups() + group]; }

    // Before a ubatch. to_build() are the groups whose sketches the ubatch builds: all stale groups except open ones. A stream's open group is
    // being filled: it is the highest stale group that holds keys, but not in every cell. A group without keys has no sketch, and its
    // memory is not touched. find_none(): the ubatch builds none.
    void find(const Cells & cells);
    void find_none() { building.clear(); }
    const std::vector<StaleGroup> & to_build() const { return building; }
    void built();  // the ubatch has built all of to_build()

    int open_group(int stream) const { assert(dims.has_stream(stream)); return open[stream]; }  // -1: none
    bool is_open(int stream, int group) const { return open[stream] == group; }

    uint64_t n_looked() const { return looked; }  // cells
    size_t bytes() const { return bits.size() + ids.capacity() * sizeof(int32_t); }
    static size_t bytes_of(const PageShape & shape) { return static_cast<size_t>(shape.n_stream) * shape.n_groups() * (1 + sizeof(int32_t)); }

private:
    void forget_built();
    void mark_id(int32_t id) {
        if (!bits[id]) {
            bits[id] = 1;
            ids.push_back(id);
        }
    }

    PageShape dims = {};
    std::vector<uint8_t> bits;  // [stream][group] whether `ids` has the group
    std::vector<int32_t> ids;
    std::vector<StaleGroup> building;
    std::vector<int> open;      // [stream]
    uint64_t looked = 0;
};

}  // namespace edgekv
