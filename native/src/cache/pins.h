// Pinned spans of positions in sequences, and their present cells.
#pragma once

#include "edgekv.h"
#include "cache/cells.h"

#include <cassert>
#include <cstdint>
#include <vector>

namespace edgekv {

// A span is widened to whole runs of page_tokens positions, so the same tokens are pinned wherever a conversation's cells lie.
class Pins {
public:
    void shape(const PageShape & shape);  // forgets all
    void set(const edgekv_span * spans, int n);  // replaces all spans from the next sync on; throws std::bad_alloc

    // Decoding thread, before a ubatch, after the cells' sync.
    void sync(const llama_context * lctx, const Cells & cells);

    uint64_t of(int stream, int group) const {  // a bit for each pinned cell of a group
        assert(dims.has_stream(stream) && group >= 0 && group < dims.n_groups());
        return bits.empty() ? 0 : bits[static_cast<size_t>(stream) * dims.n_groups() + group];
    }
    const std::vector<int32_t> & changed() const { return changed_groups; }  // stream*groups + group, in the last sync
    size_t bytes() const { return bits.size() * sizeof(uint64_t); }
    static size_t most_bytes(const PageShape & shape) { return static_cast<size_t>(shape.n_stream) * shape.n_groups() * sizeof(uint64_t); }

private:
    void look_at(int stream, int group, const llama_edgekv_cells & cells);

    PageShape dims = {};
    std::vector<edgekv_span> spans;
    bool anew = false;  // the spans were replaced since the last sync
    std::vector<uint64_t> bits;  // [stream][group]; empty: nothing was ever pinned
    std::vector<int32_t> changed_groups;
};

}  // namespace edgekv
