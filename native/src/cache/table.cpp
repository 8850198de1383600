#include "cache/table.h"

#include <algorithm>

namespace edgekv {

void Table::shape(const PageShape & shape, int most_tokens) {
    assert(most_tokens > 0);
    dims        = shape;
    step_tokens = most_tokens;
    table.assign(dims.n_entries(), -1);
    n_published = 0;
    fills.clear();
    touched_entries.clear();
    set_tail(0);
}

// ---- entries -----------------------------------------------------------------------------------------------------------------

void Table::set(int64_t entry, int32_t slot) {
    assert(slot >= 0);
    n_published += table[entry] < 0;
    table[entry] = slot;
    touched_entries.push_back(entry);
}

void Table::drop(int64_t entry) {
    if (table[entry] < 0) {
        return;
    }
    table[entry] = -1;
    n_published -= 1;
    touched_entries.push_back(entry);
}

void Table::drop_page(int page) {
    for (int head = 0; head < dims.n_layers * dims.n_heads; ++head) {  // of all layers
        drop(static_cast<int64_t>(head) * dims.n_pages + page);
    }
}

// ---- changes -----------------------------------------------------------------------------------------------------------------

// Moves the tail slots to the newest pages, which this ubatch fills. A page gets one if all its rows are, or were, written through.
void Table::follow_tail(int stream, const std::vector<ChangedPage> & changed) {
    newest_last = changed;
    std::sort(newest_last.begin(), newest_last.end(), [](const ChangedPage & a, const ChangedPage & b) { return a.newest < b.newest; });
    const size_t n = std::min(newest_last.size(), static_cast<size_t>(n_tail_pages()) - 1);  // the page before them keeps its slot

    for (size_t i = newest_last.size() - n; i < newest_last.size(); ++i) {
        const int page = newest_last[i].page;
        int &     held = tails[stream][page % n_tail_pages()];
        if (newest_last[i].newest < 0 || (held != page && !newest_last[i].whole)) {
            continue;
        }
        for (int head = 0; head < dims.n_layers * dims.n_heads; ++head) {  // of all layers
            const int64_t first = static_cast<int64_t>(head) * dims.n_pages;
            if (held >= 0 && held != page && table[first + held] == tail_slot(head, held)) {
                drop(first + held);
            }
            set(first + page, tail_slot(head, page));
        }
        held = page;
    }
}

void Table::sync(const Cells & cells, int n_stored) {
    for (int s = 0; n_published > 0 && s < dims.n_stream; ++s) {
        for (const ChangedPage & changed : cells.changed_now(s)) {
            drop_page(changed.page);
        }
    }
    if (tail_first == 0) {
        return;
    }
    // if other cells changed too, their contents may have changed without our nodes
    const bool all_stored = cells.n_cells_changed() == n_stored;
    for (int s = 0; s < dims.n_stream; ++s) {
        if (all_stored) {
            follow_tail(s, cells.changed_now(s));
        }
        for (const ChangedPage & changed : cells.changed_now(s)) {
            int & held = tails[s][changed.page % n_tail_pages()];
            if (held == changed.page && table[changed.page] != tail_slot(0, changed.page)) {
                held = -1;  // it left the table with other changed pages
            }
        }
    }
}

void Table::set_tail(int first_slot) {
    assert(first_slot >= 0);
    tail_first = first_slot;
    tails.assign(dims.n_stream, std::vector<int>(n_tail_pages(), -1));
}

// ---- the caller's slots ------------------------------------------------------------------------------------------------------

void Table::set_slots(int n_slots) {
    assert(n_slots >= 0);
    for (size_t entry = 0; entry < table.size(); ++entry) {
        if (table[entry] >= n_slots && (tail_first == 0 || table[entry] < tail_first)) {
            drop(static_cast<int64_t>(entry));
        }
    }
    slot_copied.resize(n_slots);
    for (auto it = fills.begin(); it != fills.end();) {
        it = it->second.slot >= n_slots ? fills.erase(it) : std::next(it);
    }
}

void Table::copied(const edgekv_move & move, const Cells & cells) {
    assert(move.slot >= 0 && move.slot < n_slots());
    slot_copied[move.slot] = { cells.time_of(move.page), entry_of(move) };
}

bool Table::publish(const llama_context * lctx, const edgekv_move & move, const Cells & cells) {
    assert(move.slot >= 0 && move.slot < n_slots());
    const Copied & copy = slot_copied[move.slot];
    if (copy.entry != entry_of(move) || cells.page_changed_since(lctx, move.page, copy.time)) {
        return false;
    }
    set(entry_of(move), move.slot);
    return true;
}

void Table::release(const edgekv_move & move) { drop(entry_of(move)); }

// ---- slots that a prompt fills -----------------------------------------------------------------------------------------------

void Table::fill(const edgekv_move * moves, int n, const Cells & cells) {
    for (auto it = fills.begin(); it != fills.end();) {
        it = it->second.over ? fills.erase(it) : std::next(it);
    }
    for (const edgekv_move * move = moves; move < moves + n; ++move) {
        copied(*move, cells);
        fills[entry_of(*move)] = { move->slot, false, false };
        touched_entries.push_back(entry_of(*move));
    }
}

bool Table::is_over(const edgekv_move & move) const {
    const auto fill = fills.find(entry_of(move));
    return fill == fills.end() || fill->second.over;
}

bool Table::is_filled(const edgekv_move & move) const {
    const auto fill = fills.find(entry_of(move));
    return fill != fills.end() && fill->second.filled && fill->second.slot == move.slot;
}

int32_t Table::slot_to_fill(int64_t entry) const {
    const auto fill = fills.find(entry);
    return fill != fills.end() && !fill->second.over ? fill->second.slot : -1;
}

}  // namespace edgekv
