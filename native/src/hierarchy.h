// The memory hierarchy of one context: sketches of every page, the page table and its arena, and what selection needs and leaves.
#pragma once

#include "attend.h"
#include "buffer.h"
#include "edgekv.h"
#include "llama-edgekv.h"
#include "plane/device/engine.h"
#include "sketch.h"

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace edgekv {

// A group of cells whose K is not what its sketch was built from.
struct StaleGroup {
    int stream;
    int group;
    uint64_t valid;  // a bit for each cell that holds a key
};

struct HierarchyShape {
    int n_rows, n_heads;
    int n_stream, n_cells;  // cells of a stream
    int page_tokens;
    int pages_per_stream, n_pages;
    size_t slot_bytes;  // of the largest row
};

class Hierarchy {
public:
    // throws std::bad_alloc
    void shape(const HierarchyShape & shape);

    // From now on sketches, arena, priority and pins are a plane's, and what it has to mirror is kept for it.
    void leave_to_plane();
    void return_from_plane();  // throws std::bad_alloc
    bool on_plane() const { return mirrored; }
    const std::vector<MirrorUpdate> & updates();  // an entry named twice has the same value in both
    void updates_delivered() { mirror_updates.clear(); }

    // Buffers of a sketch kind for `row`; all groups are stale where the kind or the row is new. false: out of memory
    bool reserve_sketches(int row, SketchKind kind, int head_dim, int n_head_kv);
    Sketch sketch(int row, int stream) const;

    // The groups of `own`, a row's sketches [stream] in host memory, that differ from a rebuild out of `keys`, [stream]; those that
    // are stale now are left out. -1: out of memory.
    int count_wrong(const llama_context * lctx, const std::vector<Sketch> & own, const std::vector<SketchKeys> & keys, int & n_compared) const;

    // Decoding thread, before a ubatch is computed: what changed since the call before, at the cost of what changed. Pages that changed
    // leave the table. `n_stored`: tokens whose rows nodes of ours will store, also in the arena where the table says so. `sketches`:
    // the ubatch builds sketches, those of stale_groups(); otherwise these are none, and what is stale stays so. The group that is being
    // filled is not sketched: of a stream the highest stale one that holds keys, and not in every cell, is open.
    void sync(const llama_context * lctx, int n_stored, bool sketches);
    uint64_t n_looked() const { return looked; }  // cells, in all calls of sync()
    void mark_all_stale();
    const std::vector<StaleGroup> & stale_groups() const { return stale; }
    bool is_open(int stream, int group) const { return open_group[stream] == group; }
    void sketches_are_true();
    const std::vector<int32_t> & changed_pages() const { return changed; }
    void changes_delivered() { delivered = true; }

    const int32_t * positions(int stream) const { return stream_positions[stream]; }
    const int32_t * newest(int stream) const { return page_newest.data() + (size_t) stream*dims.pages_per_stream; }
    const int32_t * oldest(int stream) const { return page_oldest.data() + (size_t) stream*dims.pages_per_stream; }

    float * priority(int row, int stream, int head) { return row_of(prior, row, stream, head); }
    // mode evict: what a head does not attend
    const uint8_t * dropped(int row, int stream, int head) { return row_of(drops, row, stream, head); }
    void drop(const edgekv_move & move);
    int64_t n_dropped() const { return drops_total; }
    bool any_dropped(int row) const { return drops_of_row[row] > 0; }

    uint8_t * pinned(int row, int stream, int head) { return row_of(pins, row, stream, head); }
    int32_t * slots(int row, int stream, int head) { return row_of(table, row, stream, head); }

    // the arena
    bool set_arena(int n_slots);  // false: out of memory, nothing changed; on a plane only the number is kept
    int n_slots() const { return (int) slot_copied.size(); }

    // On a plane: the pages that a step of a stream fills, and the one before them, have slots of their own, behind the caller's: they are
    // written through, so that the newest tokens need no copy. 0: none.
    int n_tail_pages() const { return kEngineTokens/dims.page_tokens + 2; }  // a step may begin within a page
    int n_tail_slots() const { return dims.n_rows*dims.n_heads*dims.n_stream*n_tail_pages(); }
    void set_tail(int first_slot) {
        tail_first = first_slot;
        forget_tails();
    }
    char * slot(int i) { return arena.data() + (size_t) i*dims.slot_bytes; }
    const char * arena_data() const { return n_slots() > 0 ? arena.data() : nullptr; }
    void copied(const edgekv_move & move) { slot_copied[move.slot] = {now[move.page/dims.pages_per_stream], id(move)}; }
    bool publish(const llama_context * lctx, const edgekv_move & move);
    void release(const edgekv_move & move);

    // On a plane: if the next ubatch is a prompt, which brings every page to the device anyway, it leaves these in their slots, and they
    // can then be published; as if copied at this moment.
    void fill(const edgekv_move * moves, int n);
    // After that ubatch. filled(stream, page of it): whether the page was staged, in every row
    template <class Filled>
    void end_fills(const Filled & filled) {
        for (auto & [id, fill] : fills) {
            if (!fill.over) {
                const int page = (int) (id%dims.n_pages);
                fill.over   = true;
                fill.filled = table[id] < 0 && filled(page/dims.pages_per_stream, page%dims.pages_per_stream);  // else it came from a slot
                mirror(Mirror::slots, id, -1);  // see updates()
            }
        }
    }
    bool is_over(const edgekv_move & move) const;  // the ubatch, or it was never told to fill the page
    bool is_filled(const edgekv_move & move) const;

    size_t sketch_bytes() const;
    size_t arena_bytes() const { return arena.size(); }
    size_t table_bytes() const;

    HierarchyShape dims = {};

private:
    template <class T>
    T * row_of(std::vector<T> & array, int row, int stream, int head) {
        return array.data() + ((size_t) row*dims.n_heads + head)*dims.n_pages + (size_t) stream*dims.pages_per_stream;
    }

    struct RowSketch {
        SketchKind kind = SketchKind::none;
        int head_dim = 0, n_head_kv = 0;
        size_t stream_bytes = 0;
        Buffer data;
    };

    struct Copied {
        uint64_t time = 0;
        int64_t id    = -1;
    };

    struct Fill {
        int32_t slot;
        bool over, filled;
    };

    int64_t id(const edgekv_move & move) const { return ((int64_t) move.row*dims.n_heads + move.head)*dims.n_pages + move.page; }
    bool page_changed_since(const llama_context * lctx, int page, uint64_t time) const;

    std::vector<RowSketch> sketches;
    std::vector<uint8_t> stale_bits;  // [stream][group]: in stale_list
    std::vector<int32_t> stale_list;
    std::vector<StaleGroup> stale;
    std::vector<int> open_group;      // [stream], -1: none
    int n_groups() const { return (dims.pages_per_stream*dims.page_tokens + kGroupCells - 1)/kGroupCells; }  // of a stream
    void find_stale();
    void open(int stream, int group);

    const std::vector<int32_t> & pages_to_look_at(const llama_context * lctx, int stream, const llama_edgekv_cells & cells);
    void mark_stale(int group);

    void drop_slot(int32_t & slot);
    void drop_page(int page);
    void undrop_page(int page);
    void follow_tail(int stream);
    int tail_slot(int row_head, int page) const {
        return tail_first + (row_head*dims.n_stream + page/dims.pages_per_stream)*n_tail_pages() + page%n_tail_pages();
    }
    void mirror(Mirror array, int64_t index, int32_t value) {
        if (mirrored) {
            mirror_updates.push_back({ array, index, value });
        }
    }

    bool mirrored = false;
    int tail_first = 0;
    struct Changed {
        int page, newest;
        bool whole;  // it has no cell from before
    };
    struct Tail {
        std::vector<int> pages;        // in the slots, by page%n_tail_pages(); -1: none
        std::vector<Changed> changed;  // since the sync before
    };
    std::vector<Tail> tails;        // [stream]
    void forget_tails() { tails.assign(dims.n_stream, { std::vector<int>(n_tail_pages(), -1), {} }); }
    std::vector<MirrorUpdate> mirror_updates;

    std::vector<uint64_t> now;        // [stream] clock time of the last sync
    std::vector<llama_edgekv_range> ranges;
    std::vector<int32_t> candidates;  // pages of a stream
    uint64_t looked = 0;
    std::vector<const int32_t *> stream_positions;
    std::vector<int32_t> page_newest, page_oldest;
    std::vector<int32_t> changed;
    bool delivered = true;

    std::vector<float> prior;
    std::vector<uint8_t> pins;
    std::vector<uint8_t> drops;
    std::vector<int64_t> drops_of_row;
    int64_t drops_total = 0;
    std::vector<int32_t> table;
    int n_published = 0;

    Buffer arena;
    std::vector<Copied> slot_copied;
    std::unordered_map<int64_t, Fill> fills;  // by id
};

}  // namespace edgekv
