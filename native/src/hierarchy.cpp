#include "hierarchy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace edgekv {

static constexpr int kMaxQueryHeads = 1024;  // of one KV head: the most attention mass that a page can have
static constexpr int kMaxRanges     = 1024;  // of cells that changed since the last sync; with more all cells are looked at

void Hierarchy::shape(const HierarchyShape & shape) {
    dims = shape;

    const size_t n = (size_t) dims.n_rows*dims.n_heads*dims.n_pages;
    prior.assign(n, 0.0f);
    estimated.assign(n, 0.0f);
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
    stale_bits.assign((size_t) dims.n_pages*(dims.page_tokens/kSketchStripCells), 0);
    stale_list.clear();
    stale_list.reserve(stale_bits.size());
    ranges.resize(kMaxRanges);
}

void Hierarchy::leave_to_plane() {
    mirrored = true;
    prior     = {};
    estimated = {};
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
                update.value = plane_fill(fill->second.slot);
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

    const int    n_strips     = dims.pages_per_stream*(dims.page_tokens/kSketchStripCells);
    const size_t stream_bytes = kind == SketchKind::none ? 0 : edgekv::sketch_bytes(kind, head_dim, n_head_kv, n_strips);

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
    const int per_stream = dims.pages_per_stream*(dims.page_tokens/kSketchStripCells);
    int n_wrong = 0;

    Buffer rebuilt;
    for (int stream = 0; stream < dims.n_stream; ++stream) {
        llama_edgekv_cells cells;
        const Sketch & mine = own[stream];
        if (mine.kind == SketchKind::none || !llama_edgekv_get_cells(lctx, (uint32_t) stream, &cells)) {
            continue;
        }
        const size_t n_bytes = edgekv::sketch_bytes(mine.kind, mine.head_dim, mine.n_head_kv, mine.n_strips);
        if (!rebuilt.reserve(n_bytes)) {
            return -1;
        }
        for (int strip = 0; strip < per_stream; ++strip) {
            const int first = strip*kSketchStripCells;
            bool stale = stale_bits[(size_t) stream*per_stream + strip];
            uint32_t valid = 0;
            for (int c = first; c < std::min(first + kSketchStripCells, (int) cells.n_cells); ++c) {
                stale  = stale || cells.changed[c] > now[stream];
                valid |= cells.pos[c] >= 0 ? 1u << (c - first) : 0;
            }
            if (stale) {
                continue;
            }
            // rebuilt in a copy, which must not change by it
            std::memcpy(rebuilt.data(), mine.data, n_bytes);
            Sketch copy = mine;
            copy.data   = rebuilt.data();
            for (int head = 0; head < mine.n_head_kv; ++head) {
                sketch_build(copy, keys[stream], head, strip, valid, Isa::portable);
            }
            n_compared += 1;
            n_wrong    += std::memcmp(rebuilt.data(), mine.data, n_bytes) != 0;
        }
    }

    return n_wrong;
}

void Hierarchy::drop_sketches(int row) {
    sketches[row] = RowSketch{};
}

Sketch Hierarchy::sketch(int row, int stream) const {
    const RowSketch & s = sketches[row];

    return { s.kind, s.head_dim, s.n_head_kv, dims.pages_per_stream*(dims.page_tokens/kSketchStripCells),
             s.data.data() ? s.data.data() + stream*s.stream_bytes : nullptr };
}

void Hierarchy::mark_stale(int strip) {
    if (!stale_bits[strip]) {
        stale_bits[strip] = 1;
        stale_list.push_back(strip);
    }
}

void Hierarchy::mark_all_stale() {
    for (size_t strip = 0; strip < stale_bits.size(); ++strip) {
        mark_stale((int) strip);
    }
}

void Hierarchy::sketches_are_true() {
    for (const int32_t strip : stale_list) {
        stale_bits[strip] = 0;
    }
    stale_list.clear();
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

    const size_t n_before   = changed.size();
    const int    per_stream = dims.pages_per_stream*(dims.page_tokens/kSketchStripCells);

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
                    mark_stale(s*per_stream + c/kSketchStripCells);
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
    for (size_t i = 0; sketches && i < stale_list.size(); ++i) {
        const int       s         = stale_list[i]/per_stream;
        const int       strip     = stale_list[i]%per_stream;
        const int32_t * positions = stream_positions[s];
        uint32_t        valid     = 0;
        if (!positions) {
            continue;
        }
        looked += kSketchStripCells;
        for (int j = 0; j < kSketchStripCells; ++j) {
            const int c = strip*kSketchStripCells + j;
            valid |= c < dims.n_cells && positions[c] >= 0 ? 1u << j : 0;
        }
        stale.push_back({ s, strip, valid });
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

// ---- selection ---------------------------------------------------------------------------------------------------------------

void Hierarchy::forget_threshold() {
    std::fill(values.begin(), values.end(), 0.0);
    value_budget = value_pinned = last_budget = 0.0;
    pooled_threshold = 0.0f;
}

// The mean number of pages above a value, over the latest ubatches, is a fact about their values together; the mean of what each
// alone would have needed is not: where many pages are attended, it lies orders of magnitude apart from one to the next.
void Hierarchy::steer(const std::vector<uint32_t> & buckets, double n_budget, double n_pinned) {
    constexpr double kKeep = 0.8;
    if (std::fabs(n_budget - last_budget) > 0.25*last_budget) {
        forget_threshold();  // another context: what was seen says nothing about it
    }

    last_budget  = n_budget;
    value_budget = kKeep*value_budget + n_budget;
    value_pinned = kKeep*value_pinned + n_pinned;
    for (int b = 0; b < kValueBuckets; ++b) {
        values[b] = kKeep*values[b] + buckets[b];
    }

    // the smallest value that leaves no more pages above it than the budget allows; even inside the bucket where it lies
    double left = value_budget*(1.0 + 1e-9) - value_pinned;  // rounding must not cost the last page
    int    b    = kValueBuckets - 2;
    for (; b >= 0 && left >= values[b]; --b) {
        left -= values[b];
    }
    if (b < 0) {
        pooled_threshold = 0.0f;
        return;
    }

    // no page that is not pinned is worth this much
    pooled_threshold = (float) kMaxQueryHeads;
    if (left > 0.0) {
        const float low  = bucket_value(b);
        const float high = bucket_value(b + 1);
        pooled_threshold = std::clamp(high - (float) (left/values[b])*(high - low), std::numeric_limits<float>::min(), pooled_threshold);
    }
}

size_t Hierarchy::sketch_bytes() const {
    size_t n = 0;
    for (const auto & s : sketches) {
        n += s.data.size();
    }

    return n;
}

size_t Hierarchy::table_bytes() const {
    return prior.size()*sizeof(float) + estimated.size()*sizeof(float) + pins.size() + drops.size() + table.size()*sizeof(int32_t) +
           (page_newest.size() + page_oldest.size())*sizeof(int32_t) + stale_bits.size() + stale_list.capacity()*sizeof(int32_t) +
           slot_copied.size()*sizeof(Copied);
}

}  // namespace edgekv
