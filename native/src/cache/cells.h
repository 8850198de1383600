// The contents of llama.cpp's cells, by page, and the changes since the previous sync.
#pragma once

#include "llama-edgekv.h"
#include "cache/shape.h"

#include <cassert>
#include <cstdint>
#include <vector>

namespace edgekv {

class StaleGroups;

struct ChangedPage {
    int page;
    int32_t newest;  // newest position in the page, -1: it is empty
    bool whole;      // every occupied cell changed
};

class Cells {
public:
    void shape(const PageShape & shape);  // forgets all; throws std::bad_alloc

    // Decoding thread, before a ubatch is computed. Finds the cells that changed since the previous call, at a cost that depends only on their
    // number, and marks their groups in `stale`. Keys that turned as gaps closed make all groups stale; `copies`: and all pages changed, because
    // there may be copies of them.
    void sync(const llama_context * lctx, StaleGroups & stale, bool copies);
    const std::vector<ChangedPage> & changed_now(int stream) const {  // in the last sync
        assert(dims.has_stream(stream));
        return found[stream];
    }
    int n_cells_changed() const { return n_changed; }  // in the last sync
    uint64_t n_looked() const { return looked; }       // cells examined by all calls

    const std::vector<int32_t> & changed_pages() const { return changed; }  // since the last delivery, ascending
    void changes_delivered() { delivered = true; }

    // null before the first sync
    const int32_t * positions(int stream) const { assert(dims.has_stream(stream)); return stream_positions[stream]; }
    const int32_t * newest() const { return page_newest.data(); }  // of all streams
    const int32_t * newest(int stream) const { return page_newest.data() + first_page(stream); }
    const int32_t * oldest(int stream) const { return page_oldest.data() + first_page(stream); }

    uint64_t time_of(int page) const { assert(dims.has(0, 0, page)); return now[page / dims.pages_per_stream]; }  // of the last sync
    uint64_t time_of_stream(int stream) const { assert(dims.has_stream(stream)); return now[stream]; }
    bool page_changed_since(const llama_context * lctx, int page, uint64_t time) const;

    size_t bytes() const { return (page_newest.size() + page_oldest.size()) * sizeof(int32_t); }
    static size_t bytes_of(const PageShape & shape) { return 2 * shape.n_pages * sizeof(int32_t); }

private:
    size_t first_page(int stream) const {
        assert(dims.has_stream(stream));
        return static_cast<size_t>(stream) * dims.pages_per_stream;
    }
    const std::vector<int32_t> & pages_to_look_at(const llama_context * lctx, int stream, const llama_edgekv_cells & cells);
    void look_at(int stream, int page, const llama_edgekv_cells & cells, StaleGroups & stale);

    PageShape dims = {};
    void turn(int stream, const llama_edgekv_cells & cells, StaleGroups & stale, bool copies);

    std::vector<uint64_t> now;        // [stream] clock time of the last sync
    std::vector<uint64_t> n_turned;   // [stream] as of the last sync
    std::vector<llama_edgekv_range> ranges;
    std::vector<int32_t> candidates;  // pages of a stream
    uint64_t looked = 0;
    std::vector<const int32_t *> stream_positions;
    std::vector<int32_t> page_newest, page_oldest;
    std::vector<std::vector<ChangedPage>> found;  // [stream]
    int n_changed = 0;
    std::vector<int32_t> changed;
    bool delivered = true;
};

}  // namespace edgekv
