#include "hierarchy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace edgekv {

static constexpr int kMaxRanges     = 1024;  // of cells that changed since the last sync; with more all cells are looked at

void Hierarchy::shape(const HierarchyShape & shape) {
    dims = shape;

    const size_t n = (size_t) dims.n_rows*dims.n_heads*dims.n_pages;
    prior.assign(n, 0.0f);
    pins.assign(n, 0);
    drops.assign(n, 0);
    drops_of_row.assign(dims.n_rows, 0);
    drops_total = 0;
    table.assign(n, -1);
    fills.clear();

    sketches.resize(dims.n_rows);
    forget_tails();
    tail_first = 0;
    now.assign(dims.n_stream, 0);
    stream_positions.assign(dims.n_stream, nullptr);
    page_newest.assign(dims.n_pages, -1);
    page_oldest.assign(dims.n_pages, std::numeric_limits<int32_t>::max());
    open_group.assign(dims.n_stream, -1);
    stale_bits.assign((size_t) dims.n_stream*n_groups(), 0);
    stale_list.clear();
    stale_list.reserve(stale_bits.size());
    ranges.resize(kMaxRanges);
}

void Hierarchy::leave_to_plane() {
    mirrored = true;
    prior     = {};
    pins      = {};
    drops     = {};
}

void Hierarchy::return_from_plane() {
    if (mirrored) {
        mirrored = false;
        mirror_updates.clear();
        shape(dims);
    }
}

const std::vector<MirrorUpdate> & Hierarchy::updates() {
    for (MirrorUpdate & update : mirror_updates) {
        if (update.array == Mirror::slots) {  // published, and dropped again
            update.value = table[update.index];
            const auto fill = update.value < 0 ? fills.find(update.index) : fills.end();
            if (fill != fills.end() && !fill->second.over) {
                update.value = engine_fill(fill->second.slot);
            }
        }
    }

    return mirror_updates;
}

// ---- sketches ----------------------------------------------------------------------------------------------------------------

bool Hierarchy::reserve_sketches(int row, SketchKind kind, int head_dim, int n_head_kv) {
    RowSketch & s = sketches[row];
    if (s.kind == kind) {
        return true;
    }

    const size_t stream_bytes = edgekv::sketch_bytes(kind, head_dim, n_head_kv, n_groups());

    Buffer fresh;
    if (!fresh.reserve(stream_bytes*dims.n_stream)) {
        return false;
    }

    s.kind         = kind;
    s.head_dim     = head_dim;
    s.n_head_kv    = n_head_kv;
    s.stream_bytes = stream_bytes;
    s.data         = std::move(fresh);
    mark_all_stale();

    return true;
}

int Hierarchy::count_wrong(const llama_context * lctx, const std::vector<Sketch> & own, const std::vector<SketchKeys> & keys,
                           int & n_compared) const {
    int n_wrong = 0;

    Buffer rebuilt;
    for (int stream = 0; stream < dims.n_stream; ++stream) {
        llama_edgekv_cells cells;
        const Sketch & mine = own[stream];
        if (mine.kind == SketchKind::none || !llama_edgekv_get_cells(lctx, (uint32_t) stream, &cells)) {
            continue;
        }
        const size_t n_bytes = edgekv::sketch_bytes(mine.kind, mine.head_dim, mine.n_head_kv, mine.n_groups);
        if (!rebuilt.reserve(n_bytes)) {
            return -1;
        }
        for (int group = 0; group < mine.n_groups; ++group) {
            const int first = group*kGroupCells;
            bool stale = stale_bits[(size_t) stream*n_groups() + group];
            uint64_t valid = 0;
            for (int c = first; c < std::min(first + kGroupCells, (int) cells.n_cells); ++c) {
                stale  = stale || cells.changed[c] > now[stream];
                valid |= cells.pos[c] >= 0 ? uint64_t{1} << (c - first) : 0;
            }
            if (stale) {
                continue;
            }
            // rebuilt in a copy, which must not change by it
            std::memcpy(rebuilt.data(), mine.data, n_bytes);
            Sketch copy = mine;
            copy.data   = rebuilt.data();
            for (int head = 0; head < mine.n_head_kv; ++head) {
                sketch_build(copy, keys[stream], head, group, valid, Isa::portable);
            }
            n_compared += 1;
            n_wrong    += std::memcmp(rebuilt.data(), mine.data, n_bytes) != 0;
        }
    }

    return n_wrong;
}

Sketch Hierarchy::sketch(int row, int stream) const {
    const RowSketch & s = sketches[row];

    return { s.kind, s.head_dim, s.n_head_kv, n_groups(), s.data.data() ? s.data.data() + stream*s.stream_bytes : nullptr };
}

void Hierarchy::mark_stale(int group) {
    if (!stale_bits[group]) {
        stale_bits[group] = 1;
        stale_list.push_back(group);
    }
}

void Hierarchy::mark_all_stale() {
    for (size_t group = 0; group < stale_bits.size(); ++group) {
        mark_stale((int) group);
    }
}

void Hierarchy::open(int stream, int group) {
    const int before = open_group[stream];
    if (before == group) {
        return;
    }
    open_group[stream] = group;
    if (before >= 0) {
        mirror(Mirror::open, (int64_t) stream*n_groups() + before, 0);
    }
    if (group >= 0) {
        mirror(Mirror::open, (int64_t) stream*n_groups() + group, 1);
    }
}

// What is stale is sketched in this ubatch, but for the groups that stay open.
void Hierarchy::find_stale() {
    std::vector<int> filling(dims.n_stream, -1);

    for (const int32_t id : stale_list) {
        const int       s         = id/n_groups();
        const int       group     = id%n_groups();
        const int32_t * positions = stream_positions[s];
        uint64_t        valid     = 0;
        if (!positions) {
            continue;
        }
        looked += kGroupCells;
        for (int j = 0; j < kGroupCells; ++j) {
            const int c = group*kGroupCells + j;
            valid |= c < dims.n_cells && positions[c] >= 0 ? uint64_t{1} << j : 0;
        }
        if (valid != 0 && ~valid != 0) {
            filling[s] = std::max(filling[s], group);
        }
        stale.push_back({ s, group, valid });
    }
    for (int s = 0; s < dims.n_stream; ++s) {
        open(s, filling[s]);
    }
    stale.erase(std::remove_if(stale.begin(), stale.end(), [&](const StaleGroup & g) { return is_open(g.stream, g.group); }), stale.end());
}

void Hierarchy::sketches_are_true() {
    for (const StaleGroup & built : stale) {
        stale_bits[(size_t) built.stream*n_groups() + built.group] = 0;
    }
    stale_list.erase(std::remove_if(stale_list.begin(), stale_list.end(), [&](int32_t id) { return !stale_bits[id]; }), stale_list.end());
}

// The newest pages that this ubatch fills: all of its rows are written through, and what they had before was, or there was nothing.
void Hierarchy::follow_tail(int stream) {
    Tail & tail = tails[stream];
    std::sort(tail.changed.begin(), tail.changed.end(), [](const Changed & a, const Changed & b) { return a.newest < b.newest; });
    const size_t n = std::min(tail.changed.size(), (size_t) n_tail_pages() - 1);  // the one before them keeps its slot

    for (size_t i = tail.changed.size() - n; i < tail.changed.size(); ++i) {
        const int page = tail.changed[i].page;
        int &     held = tail.pages[page%n_tail_pages()];
        if (page_newest[page] < 0 || (held != page && !tail.changed[i].whole)) {
            continue;
        }
        for (int row = 0; row < dims.n_rows*dims.n_heads; ++row) {
            int32_t * slots = table.data() + (size_t) row*dims.n_pages;
            if (held >= 0 && held != page && slots[held] == tail_slot(row, held)) {
                drop_slot(slots[held]);
            }
            n_published += slots[page] < 0;
            slots[page] = tail_slot(row, page);
            mirror(Mirror::slots, slots + page - table.data(), slots[page]);
        }
        held = page;
    }
}

void Hierarchy::drop_page(int page) {
    for (int row = 0; row < dims.n_rows*dims.n_heads; ++row) {
        drop_slot(table[(size_t) row*dims.n_pages + page]);
    }
}

void Hierarchy::drop(const edgekv_move & move) {
    uint8_t & dropped = drops[id(move)];
    drops_total           += dropped == 0;
    drops_of_row[move.row] += dropped == 0;
    dropped = 1;
}

void Hierarchy::undrop_page(int page) {
    for (int row = 0; row < dims.n_rows*dims.n_heads; ++row) {
        uint8_t & dropped = drops[(size_t) row*dims.n_pages + page];
        drops_total                    -= dropped;
        drops_of_row[row/dims.n_heads] -= dropped;
        dropped = 0;
    }
}

// Ascending, each once: the pages of a stream with every cell that changed since the last sync.
const std::vector<int32_t> & Hierarchy::pages_to_look_at(const llama_context * lctx, int stream, const llama_edgekv_cells & cells) {
    candidates.clear();
    if (now[stream] == cells.now) {
        return candidates;
    }

    const int n = llama_edgekv_get_changed(lctx, (uint32_t) stream, now[stream], ranges.data(), kMaxRanges);
    for (int i = 0; i < n; ++i) {
        for (uint32_t page = ranges[i].first/dims.page_tokens; page*dims.page_tokens < ranges[i].end; ++page) {
            candidates.push_back((int32_t) page);
        }
    }
    if (n > 1) {
        std::sort(candidates.begin(), candidates.end());
        candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
    }

    return candidates;
}

void Hierarchy::sync(const llama_context * lctx, int n_stored, bool sketches) {
    if (delivered) {
        changed.clear();
        delivered = false;
    }

    const size_t n_before = changed.size();

    int n_cells_changed = 0;
    for (int s = 0; s < dims.n_stream; ++s) {
        llama_edgekv_cells cells;
        tails[s].changed.clear();
        if (!llama_edgekv_get_cells(lctx, (uint32_t) s, &cells)) {
            continue;
        }
        stream_positions[s] = cells.pos;

        const int n_cells = (int) cells.n_cells;
        for (const int page : pages_to_look_at(lctx, s, cells)) {
            const int first = page*dims.page_tokens;
            const int end   = std::min(first + dims.page_tokens, n_cells);

            int32_t newest = -1;
            int32_t oldest = std::numeric_limits<int32_t>::max();
            bool    whole  = true;
            bool    same   = true;
            looked += end - first;
            for (int c = first; c < end; ++c) {
                const bool is_new = cells.changed[c] > now[s];
                if (cells.pos[c] >= 0) {
                    newest = std::max(newest, cells.pos[c]);
                    oldest = std::min(oldest, cells.pos[c]);
                    whole  = whole && is_new;
                }
                if (is_new) {
                    mark_stale(s*n_groups() + c/kGroupCells);
                    n_cells_changed += 1;
                    same = false;
                }
            }
            if (same) {
                continue;
            }
            const int id = s*dims.pages_per_stream + page;
            tails[s].changed.push_back({ id, newest, whole });
            page_newest[id] = newest;
            page_oldest[id] = oldest;
            changed.push_back(id);
            if (drops_total > 0) {
                undrop_page(id);  // what is there now is not what was dropped
            }
            mirror(Mirror::newest, id, newest);
            mirror(Mirror::oldest, id, oldest);
            for (int c = first; mirrored && c < end; ++c) {
                mirror(Mirror::positions, (int64_t) s*dims.n_cells + c, cells.pos[c]);
            }
        }
        now[s] = cells.now;
    }

    stale.clear();
    if (sketches) {
        find_stale();
    }

    if (n_published > 0) {
        for (size_t i = n_before; i < changed.size(); ++i) {
            drop_page(changed[i]);
        }
    }
    if (tail_first > 0) {
        // any other change among them may be one of contents
        const bool all_stored = n_cells_changed == n_stored;
        for (int s = 0; s < dims.n_stream; ++s) {
            if (all_stored) {
                follow_tail(s);
            }
            for (const Changed & page : tails[s].changed) {
                int & held = tails[s].pages[page.page%n_tail_pages()];
                if (held == page.page && table[page.page] != tail_slot(0, page.page)) {
                    held = -1;  // it left the table with the others
                }
            }
        }
    }
    if (n_before > 0) {
        std::sort(changed.begin(), changed.end());
        changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
    }
}

// ---- arena -------------------------------------------------------------------------------------------------------------------

void Hierarchy::drop_slot(int32_t & slot) {
    if (slot < 0) {
        return;
    }
    slot = -1;
    n_published -= 1;
    mirror(Mirror::slots, &slot - table.data(), -1);
}

bool Hierarchy::set_arena(int n_slots) {
    Buffer fresh;
    if (!mirrored && !fresh.reserve((size_t) n_slots*dims.slot_bytes)) {
        return false;
    }

    const int n_kept = std::min(n_slots, this->n_slots());
    if (!mirrored && n_kept > 0) {
        std::memcpy(fresh.data(), arena.data(), (size_t) n_kept*dims.slot_bytes);
    }
    for (int32_t & slot : table) {
        if (slot >= n_slots && (tail_first == 0 || slot < tail_first)) {
            drop_slot(slot);
        }
    }
    arena = std::move(fresh);
    slot_copied.resize(n_slots);
    for (auto it = fills.begin(); it != fills.end();) {
        it = it->second.slot >= n_slots ? fills.erase(it) : std::next(it);
    }

    return true;
}

bool Hierarchy::page_changed_since(const llama_context * lctx, int page, uint64_t time) const {
    llama_edgekv_cells cells;
    if (!llama_edgekv_get_cells(lctx, (uint32_t) (page/dims.pages_per_stream), &cells)) {
        return true;
    }

    const int first = page%dims.pages_per_stream*dims.page_tokens;
    for (int c = first; c < std::min(first + dims.page_tokens, (int) cells.n_cells); ++c) {
        if (cells.changed[c] > time) {
            return true;
        }
    }

    return false;
}

bool Hierarchy::publish(const llama_context * lctx, const edgekv_move & move) {
    const Copied & copy = slot_copied[move.slot];
    if (copy.id != id(move) || page_changed_since(lctx, move.page, copy.time)) {
        return false;
    }

    int32_t & slot = table[id(move)];
    n_published += slot < 0;
    slot = move.slot;
    mirror(Mirror::slots, id(move), move.slot);

    return true;
}

void Hierarchy::release(const edgekv_move & move) {
    drop_slot(table[id(move)]);
}

void Hierarchy::fill(const edgekv_move * moves, int n) {
    for (auto it = fills.begin(); it != fills.end();) {
        it = it->second.over ? fills.erase(it) : std::next(it);
    }
    for (const edgekv_move * move = moves; move < moves + n; ++move) {
        copied(*move);
        fills[id(*move)] = { move->slot, false, false };
        mirror(Mirror::slots, id(*move), -1);  // see updates()
    }
}

bool Hierarchy::is_over(const edgekv_move & move) const {
    const auto fill = fills.find(id(move));

    return fill == fills.end() || fill->second.over;
}

bool Hierarchy::is_filled(const edgekv_move & move) const {
    const auto fill = fills.find(id(move));

    return fill != fills.end() && fill->second.filled && fill->second.slot == move.slot;
}

// ---- sizes -------------------------------------------------------------------------------------------------------------------

size_t Hierarchy::sketch_bytes() const {
    size_t n = 0;
    for (const auto & s : sketches) {
        n += s.data.size();
    }

    return n;
}

size_t Hierarchy::table_bytes() const {
    return prior.size()*sizeof(float) + pins.size() + drops.size() + table.size()*sizeof(int32_t) +
           (page_newest.size() + page_oldest.size())*sizeof(int32_t) + stale_bits.size() + stale_list.capacity()*sizeof(int32_t) +
           slot_copied.size()*sizeof(Copied);
}

}  // namespace edgekv
