// The page table: the arena slot that holds each page's copy. A page whose cells change leaves the table at once.
#pragma once

#include "edgekv.h"
#include "cache/cells.h"

#include <cassert>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace edgekv {

class Table {
public:
    // Empties the table. `step_tokens`: the most query tokens of a stream that one step stores; throws std::bad_alloc
    void shape(const PageShape & shape, int step_tokens);

    // Decoding thread, after the cells' sync: changed pages leave the table. `n_stored`: tokens whose rows our nodes will store, also in the
    // slots of this table.
    void sync(const Cells & cells, int n_stored);

    const int32_t * slots(int layer, int stream, int head) const {  // [page of the stream], -1: only in home
        assert(dims.has(layer, head, 0) && dims.has_stream(stream));
        return table.data() + dims.entry_of_stream(layer, stream, head);
    }
    const int32_t * data() const { return table.data(); }

    // ---- the caller's slots ----
    void set_slots(int n_slots);  // pages in higher slots leave the table
    int n_slots() const { return static_cast<int>(slot_copied.size()); }

    void copied(const edgekv_move & move, const Cells & cells);  // a copy begins now
    // false: another page was copied into the slot later, or the page has changed since its copy
    bool publish(const llama_context * lctx, const edgekv_move & move, const Cells & cells);
    void release(const edgekv_move & move);

    // ---- slots that a step fills ----
    // On a device, the pages that a stream's step fills, and the page before them, have slots of their own, after the caller's slots. Rows are
    // written through to them, so the newest tokens need no copy. first_slot 0: there are none.
    static int n_tail_pages(const PageShape & shape, int step_tokens) { return step_tokens / shape.page_tokens + 2; }  // a step may start in a page
    static int n_tail_slots(const PageShape & shape, int step_tokens) {
        return shape.n_layers * shape.n_heads * shape.n_stream * n_tail_pages(shape, step_tokens);
    }
    int n_tail_pages() const { return n_tail_pages(dims, step_tokens); }
    int n_tail_slots() const { return n_tail_slots(dims, step_tokens); }
    void set_tail(int first_slot);
    bool has_slot(int i) const {  // a slot of the caller, or of a tail page
        return i >= 0 && (i < n_slots() || (tail_first > 0 && i >= tail_first && i < tail_first + n_tail_slots()));
    }

    // On a device: if the next ubatch is a prompt, which brings every page to the device anyway, it leaves these pages in their slots. They
    // count as copied now, and can be published after it.
    void fill(const edgekv_move * moves, int n, const Cells & cells);
    // After that ubatch. filled(stream, page of the stream): whether the page was staged in every layer
    template <class Filled>
    void end_fills(const Filled & filled) {
        for (auto & [entry, fill] : fills) {
            if (!fill.over) {
                const int page = static_cast<int>(entry % dims.n_pages);
                fill.over   = true;
                fill.filled = table[entry] < 0 && filled(page / dims.pages_per_stream, page % dims.pages_per_stream);  // else it came from a slot
                touched_entries.push_back(entry);
            }
        }
    }
    bool is_over(const edgekv_move & move) const;  // the ubatch is over, or it had no order to fill the page
    bool is_filled(const edgekv_move & move) const;

    // ---- for a plane that mirrors the table ----
    const std::vector<int64_t> & touched() const { return touched_entries; }  // since touched_taken(); entries may repeat
    void touched_taken() { touched_entries.clear(); }
    int32_t slot_of(int64_t entry) const { return table[entry]; }
    int32_t slot_to_fill(int64_t entry) const;  // the slot that the next ubatch fills, -1: none

    size_t bytes() const { return table.size() * sizeof(int32_t) + slot_copied.size() * sizeof(Copied); }
    static size_t bytes_of(const PageShape & shape, int n_slots) { return shape.n_entries() * sizeof(int32_t) + n_slots * sizeof(Copied); }

private:
    struct Copied {
        uint64_t time = 0;
        int64_t entry = -1;
    };

    struct Fill {
        int32_t slot;
        bool over, filled;
    };

    int64_t entry_of(const edgekv_move & move) const {
        assert(dims.has(move.layer, move.head, move.page));
        return static_cast<int64_t>(dims.entry(move.layer, move.head, move.page));
    }
    void set(int64_t entry, int32_t slot);
    void drop(int64_t entry);
    void drop_page(int page);
    void follow_tail(int stream, const std::vector<ChangedPage> & changed);
    int tail_slot(int row_head, int page) const {
        return tail_first + (row_head * dims.n_stream + page / dims.pages_per_stream) * n_tail_pages() + page % n_tail_pages();
    }

    PageShape dims = {};
    int step_tokens = 0;
    std::vector<int32_t> table;
    int n_published = 0;
    std::vector<Copied> slot_copied;
    std::unordered_map<int64_t, Fill> fills;  // by entry
    std::vector<int64_t> touched_entries;

    int tail_first = 0;
    std::vector<std::vector<int>> tails;    // [stream] the pages in its tail slots, by page%n_tail_pages(); -1: none
    std::vector<ChangedPage> newest_last;
};

}  // namespace edgekv
