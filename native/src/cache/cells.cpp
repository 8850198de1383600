#include "cache/cells.h"

#include "cache/stale.h"

#include <algorithm>
#include <limits>

namespace edgekv {

static constexpr int kMaxRanges = 1024;  // ranges of changed cells; with more ranges, all cells are examined

void Cells::shape(const PageShape & shape) {
    assert(shape.page_tokens > 0 && shape.n_pages == shape.n_stream * shape.pages_per_stream);
    dims = shape;
    now.assign(dims.n_stream, 0);
    n_turned.assign(dims.n_stream, 0);
    stream_positions.assign(dims.n_stream, nullptr);
    page_newest.assign(dims.n_pages, -1);
    page_oldest.assign(dims.n_pages, std::numeric_limits<int32_t>::max());
    found.assign(dims.n_stream, {});
    ranges.resize(kMaxRanges);
}

// The pages of a stream that may have cells changed since the last sync, ascending, each once.
const std::vector<int32_t> & Cells::pages_to_look_at(const llama_context * lctx, int stream, const llama_edgekv_cells & cells) {
    candidates.clear();
    if (now[stream] == cells.now) {
        return candidates;
    }

    const int n = llama_edgekv_get_changed(lctx, static_cast<uint32_t>(stream), now[stream], ranges.data(), kMaxRanges);
    for (int i = 0; i < n; ++i) {
        for (uint32_t page = ranges[i].first / dims.page_tokens; page * dims.page_tokens < ranges[i].end; ++page) {
            candidates.push_back(static_cast<int32_t>(page));
        }
    }
    if (n > 1) {
        std::sort(candidates.begin(), candidates.end());
        candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
    }
    return candidates;
}

void Cells::look_at(int stream, int page, const llama_edgekv_cells & cells, StaleGroups & stale) {
    const int first = page * dims.page_tokens;
    const int end   = std::min(first + dims.page_tokens, static_cast<int>(cells.n_cells));
    const int id    = stream * dims.pages_per_stream + page;

    int32_t newest = -1;
    int32_t oldest = std::numeric_limits<int32_t>::max();
    bool    whole  = true;
    bool    same   = true;
    looked += end - first;
    for (int c = first; c < end; ++c) {
        const bool is_new = cells.changed[c] > now[stream];
        if (cells.pos[c] >= 0) {
            newest = std::max(newest, cells.pos[c]);
            oldest = std::min(oldest, cells.pos[c]);
            whole  = whole && is_new;
        }
        if (is_new) {
            stale.mark(stream, c / kGroupCells);
            if (cells.pos[c] > page_newest[id]) {
                stale.mark_growing(stream, c / kGroupCells);
            }
            n_changed += 1;
            same = false;
        }
    }
    if (same) {
        return;
    }
    found[stream].push_back({ id, newest, whole });
    page_newest[id] = newest;
    page_oldest[id] = oldest;
    changed.push_back(id);
}

// Keys of the stream turned; the pages hold the same tokens as before.
void Cells::turn(int stream, const llama_edgekv_cells & cells, StaleGroups & stale, bool copies) {
    for (uint32_t c = 0; c < cells.used_end; c += kGroupCells) {
        stale.mark(stream, static_cast<int>(c / kGroupCells));
    }
    for (int page = 0; copies && page < dims.pages_per_stream; ++page) {
        const int id = stream * dims.pages_per_stream + page;
        if (page_newest[id] >= 0) {
            found[stream].push_back({ id, page_newest[id], false });
            changed.push_back(id);
        }
    }
}

void Cells::sync(const llama_context * lctx, StaleGroups & stale, bool copies) {
    if (delivered) {
        changed.clear();
        delivered = false;
    }

    const size_t n_before = changed.size();

    bool turned = false;
    n_changed = 0;
    for (int s = 0; s < dims.n_stream; ++s) {
        llama_edgekv_cells cells;
        found[s].clear();
        if (!llama_edgekv_get_cells(lctx, static_cast<uint32_t>(s), &cells)) {
            continue;
        }
        stream_positions[s] = cells.pos;
        for (const int page : pages_to_look_at(lctx, s, cells)) {
            look_at(s, page, cells, stale);
        }
        now[s] = cells.now;
        turned = turned || n_turned[s] != cells.n_turned;
        if (n_turned[s] != cells.n_turned) {
            turn(s, cells, stale, copies);
            n_turned[s] = cells.n_turned;
        }
    }
    if (n_before > 0 || turned) {
        std::sort(changed.begin(), changed.end());
        changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
    }
}

bool Cells::page_changed_since(const llama_context * lctx, int page, uint64_t time) const {
    assert(page >= 0 && page < dims.n_pages);
    llama_edgekv_cells cells;
    if (!llama_edgekv_get_cells(lctx, static_cast<uint32_t>(page / dims.pages_per_stream), &cells)) {
        return true;
    }

    const int first = page % dims.pages_per_stream * dims.page_tokens;
    for (int c = first; c < std::min(first + dims.page_tokens, static_cast<int>(cells.n_cells)); ++c) {
        if (cells.changed[c] > time) {
            return true;
        }
    }
    return false;
}

}  // namespace edgekv
