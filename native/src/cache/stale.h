// Stale groups of cells: some of their keys are newer than their sketch.
#pragma once

#include "cache/cells.h"

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
    void mark_growing(int stream, int group);  // until the next find() or find_none(): the group got a token newer than those of its page
    bool is_stale(int stream, int group) const { return bits[id_of(stream, group)] & kStale; }

    // Before a ubatch. to_build() are the groups whose sketches the ubatch builds: all stale groups except open ones. An open group is being
    // filled: it grows, and holds keys, but not in every cell. Each sequence of a stream may have one. A group without keys has no sketch, and
    // its memory is not touched. find_none(): the ubatch builds none.
    void find(const Cells & cells);
    void find_none();
    const std::vector<StaleGroup> & to_build() const { return building; }
    void built();  // the ubatch has built all of to_build()

    const std::vector<int32_t> & open_groups() const { return open; }  // of all streams: stream * groups of a stream + group
    bool is_open(int stream, int group) const { return bits[id_of(stream, group)] & kOpen; }

    uint64_t n_looked() const { return looked; }  // cells
    size_t bytes() const { return bits.size() + ids.capacity() * sizeof(int32_t); }
    static size_t bytes_of(const PageShape & shape) { return static_cast<size_t>(shape.n_stream) * shape.n_groups() * (1 + sizeof(int32_t)); }

private:
    enum Bit : uint8_t { kStale = 1, kGrows = 2, kOpen = 4 };

    size_t id_of(int stream, int group) const {
        assert(dims.has_stream(stream) && group >= 0 && group < dims.n_groups());
        return static_cast<size_t>(stream) * dims.n_groups() + group;
    }
    void forget_built();
    void forget_growing();
    void mark_id(int32_t id) {
        if (!(bits[id] & kStale)) {
            bits[id] |= kStale;
            ids.push_back(id);
        }
    }

    PageShape dims = {};
    std::vector<uint8_t> bits;  // [stream][group] of Bit
    std::vector<int32_t> ids;   // stale
    std::vector<int32_t> growing;
    std::vector<int32_t> open;
    std::vector<StaleGroup> building;
    uint64_t looked = 0;
};

}  // namespace edgekv
