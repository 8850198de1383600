// Rows that leave their cells, or come back, with the memory that they have: page tables change, and few bytes are copied.
//
// Whole pages of a run of cells move by mremap() to addresses that agree with theirs modulo a huge page, so that huge pages stay whole. What they
// leave reads as zeros, as memory that was given back does. The ends of a run are copied, and so is all that the kernel does not move
// (llama-edgekv-pages.h).
//
// Pages that moved stay a mapping of their own. A conversation that comes back, grows and leaves has more of them each time, and a process has 65,530: of
// what comes back in many the small ones are copied, and the pages that a conversation leaves become one mapping with those around them.
#include "llama-edgekv-access.h"
#include "llama-edgekv-home.h"
#include "llama-edgekv-mapping.h"
#include "llama-edgekv-pages.h"
#include "llama-edgekv-parked.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>

namespace {

constexpr int MOST_PIECES = 8192;  // mappings that moved, with as many between them; what would be more is copied
constexpr size_t SMALL_PIECE = size_t{128} << 10;  // bytes, below which pieces are copied where they are many

std::atomic<int> & all_pieces() {
    static std::atomic<int> n{0};
    return n;
}

bool consecutive(const uint32_t * cells, size_t n) {
    for (size_t i = 1; i < n; ++i) {
        if (cells[i] != cells[i - 1] + 1) {
            return false;
        }
    }
    return n > 0;
}

using run_of_cells = std::pair<uint32_t, uint32_t>;  // first, end

// How these runs of rows would move.
struct moves {
    size_t moved = 0, large = 0, all = 0;  // bytes: in whole pages, in pieces that are not small, and all
    size_t n_runs = 0, n_pieces = 0;  // of whole pages, and mappings in which they lie

    moves(const std::vector<llama_edgekv_held_rows> & rows, const std::vector<run_of_cells> & runs, const llama_edgekv_mover & mover) {
        for (const auto & of : rows) {
            for (const auto & [first, end] : runs) {
                const auto pieces = mover.parts(of.data + first*of.bytes, (end - first)*of.bytes);
                n_runs   += !pieces.empty();
                n_pieces += pieces.size();
                all      += (end - first)*of.bytes;
                for (const size_t n : pieces) {
                    moved += n;
                    large += n < SMALL_PIECE ? 0 : n;
                }
            }
        }
    }

    bool pays() const { return 2*moved > all && n_pieces*llama_edgekv_least_move() <= moved; }
    size_t least() const { return n_pieces > n_runs && n_pieces*SMALL_PIECE > moved ? SMALL_PIECE : 0; }  // bytes of a piece that comes back with its memory
    size_t with_memory(size_t n) const { return least() ? large*n/all : n; }  // of n tokens
};

bool same_rows(const llama_edgekv_hold & a, const llama_edgekv_hold & b) {
    return std::equal(a.rows.begin(), a.rows.end(), b.rows.begin(), b.rows.end(), [](const auto & x, const auto & y) { return x.data == y.data; });
}

// The runs of cells that leave with these holds; none: they stay. n_pieces: in so many mappings.
std::vector<run_of_cells> runs_that_leave(std::vector<llama_edgekv_hold *> holds, const llama_edgekv_mover & mover, int & n_pieces) {
    std::sort(holds.begin(), holds.end(), [](const auto * a, const auto * b) { return a->cells.front() < b->cells.front(); });
    std::vector<run_of_cells> runs;
    for (const auto * one : holds) {
        if (!same_rows(*one, *holds.front())) {
            return {};
        }
        if (runs.empty() || runs.back().second != one->cells.front()) {
            runs.emplace_back(one->cells.front(), one->cells.front());
        }
        runs.back().second = one->cells.back() + 1;
    }
    if (holds.empty() || !mover.knows()) {  // it does not where too many files are open
        return {};
    }
    const moves how(holds.front()->rows, runs, mover);
    n_pieces = static_cast<int>(how.n_pieces);
    return how.pays() && all_pieces() + n_pieces <= MOST_PIECES ? runs : std::vector<run_of_cells>();
}

}  // namespace

bool llama_edgekv_parked::takes(const std::vector<llama_edgekv_hold *> & holds) {
    int n_pieces = 0;
    return !holds.empty() && !runs_that_leave(holds, llama_edgekv_mover(), n_pieces).empty();
}

std::shared_ptr<llama_edgekv_parked> llama_edgekv_parked::take(const std::vector<llama_edgekv_hold *> & holds) {
    if (holds.empty()) {
        return nullptr;
    }
    int n_pieces = 0;
    const llama_edgekv_mover mover;
    const auto runs = runs_that_leave(holds, mover, n_pieces);
    if (runs.empty()) {
        return nullptr;
    }
    const auto home = holds.front()->rows;  // of all of them
    std::shared_ptr<llama_edgekv_parked> parked(new llama_edgekv_parked);
    parked->n_pieces = n_pieces;
    all_pieces() += n_pieces;
    const uint32_t first = runs.front().first, n_cells = runs.back().second - first;
    size_t end = 0;
    for (const auto & of : home) {
        const size_t offset = llama_edgekv_huge(end) + reinterpret_cast<uintptr_t>(of.data + first*of.bytes)%LLAMA_EDGEKV_HUGE;
        parked->rows.push_back({ reinterpret_cast<char *>(offset), of.bytes, of.unit });
        end = offset + n_cells*of.bytes;
    }
    parked->n_bytes = llama_edgekv_huge(end) + LLAMA_EDGEKV_HUGE;
    parked->base    = llama_edgekv_addresses(parked->n_bytes);
    if (!parked->base) {
        return nullptr;
    }
    madvise(parked->base, parked->n_bytes, MADV_NOHUGEPAGE);  // what is copied takes no more than it needs
    parked->first = first;
    parked->read.resize(n_cells);
    const uintptr_t base = llama_edgekv_huge(reinterpret_cast<uintptr_t>(parked->base));

    std::vector<std::unique_lock<std::mutex>> locks;
    for (auto * one : holds) {
        locks.emplace_back(one->moves);
    }
    for (size_t i = 0; i < home.size(); ++i) {
        auto & of = parked->rows[i];
        of.data = reinterpret_cast<char *>(base + reinterpret_cast<uintptr_t>(of.data) - first*of.bytes);
        for (const auto & [begin, behind] : runs) {
            mover.move(of.data + begin*of.bytes, home[i].data + begin*of.bytes, (behind - begin)*of.bytes, false);
            mover.renew(home[i].data + begin*of.bytes, (behind - begin)*of.bytes, home[i].unit == LLAMA_EDGEKV_HUGE);
        }
    }
    for (auto * one : holds) {
        one->rows   = parked->rows;
        one->parked = parked;
        std::fill_n(parked->read.begin() + (one->cells.front() - first), one->cells.size(), true);
    }
    return parked;
}

llama_edgekv_parked::~llama_edgekv_parked() {
    if (base) {
        munmap(base, n_bytes);
    }
    all_pieces() -= n_pieces;
}

void llama_edgekv_parked::drop(uint32_t begin, uint32_t end) {
    std::lock_guard<std::mutex> lock(mutex);
    begin -= first;
    end   -= first;
    std::fill(read.begin() + begin, read.begin() + end, false);
    while (begin > 0 && !read[begin - 1]) {
        --begin;
    }
    while (end < read.size() && !read[end]) {
        ++end;
    }
    for (const auto & of : rows) {
        char * from = of.data + (first + begin)*of.bytes;
        const auto [before, n] = llama_edgekv_whole(from, (end - begin)*of.bytes, llama_edgekv_small_page());
        if (n > 0) {
            madvise(from + before, n, MADV_DONTNEED);
        }
    }
}

void llama_edgekv_park(llama_kv_cache & kv, llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    if (llama_edgekv_access::is_guest(kv) || llama_edgekv_access::copies_wait(kv)) {
        return;
    }
    for (uint32_t s = 0; s < llama_edgekv_access::n_streams(kv); ++s) {
        const llama_kv_cells & cells = llama_edgekv_access::cells(kv, s);
        if (seq_id < 0 || kv.get_stream(seq_id) == s) {
            try {
                llama_edgekv_access::clock(llama_edgekv_access::cells(kv, s)).holding()->park([&](uint32_t i) {
                    return cells.pos_in(i, p0, p1) && (seq_id < 0 || (cells.seq_has(i, seq_id) && cells.seq_count(i) == 1));
                });
            } catch (const std::bad_alloc &) {
                return;  // they stay, and their holders are asked
            }
        }
    }
}

void llama_edgekv_must_copy(
        const llama_context * lctx, int seq_id, llama_edgekv_hold * const * holds, int n, const uint8_t * whole, uint8_t * copied) {
    std::fill_n(copied, n, uint8_t(1));
    const auto * kv = llama_edgekv_access::cache(lctx);
    if (!kv || llama_edgekv_access::is_guest(*kv)) {
        return;
    }
    llama_kv_cells & cells = llama_edgekv_access::cells(*kv, kv->get_stream(seq_id));
    const auto & holding = llama_edgekv_access::clock(cells).holding();
    const auto is_alone = [&](uint32_t cell) { return cells.seq_has(cell, seq_id) && cells.seq_count(cell) == 1; };
    std::vector<bool> leave(cells.size());
    for (int i = 0; i < n; ++i) {
        const auto & held = holds[i]->cells;
        copied[i] = holds[i]->holds == holding && std::any_of(held.begin(), held.end(), is_alone);  // else other streams', or other sequences' too
        for (size_t k = 0; copied[i] && whole[i] && k < held.size(); ++k) {
            leave[held[k]] = is_alone(held[k]);
        }
    }
    if (llama_edgekv_access::copies_wait(*kv)) {
        return;
    }
    for (const auto * one : holding->would_park([&](uint32_t i) { return leave[i]; })) {
        const auto at = std::find(holds, holds + n, one);
        if (at != holds + n) {
            copied[at - holds] = 0;
        }
    }
}

llama_edgekv_held_rows llama_edgekv_rows_of(const ggml_tensor * rows, uint32_t stream) {
    const size_t unit = llama_edgekv_unit(rows) < LLAMA_EDGEKV_HUGE ? llama_edgekv_small_page() : LLAMA_EDGEKV_HUGE;
    return { static_cast<char *>(rows->data) + stream*rows->nb[2], ggml_row_size(rows->type, rows->ne[0]), unit };
}

bool llama_edgekv_moves(const llama_edgekv_hold & hold, const std::vector<const ggml_tensor *> & rows) {
    return llama_edgekv_system_moves() && consecutive(hold.cells.data(), hold.cells.size()) && std::all_of(rows.begin(), rows.end(), llama_edgekv_grows);
}

namespace {

// Parked holds, whose rows lie one behind the other and go into consecutive cells.
struct together {
    llama_edgekv_hold * const * holds;
    int n;
    const uint32_t * cells;
    uint32_t n_cells;

    uint32_t first() const { return holds[0]->cells.front(); }
};

// Calls each(together) with n parked holds and their cells.
template <class Each>
void each_together(llama_edgekv_hold * const * holds, int n, const uint32_t * cells, Each && each) {
    for (int i = 0, next; i < n; i = next) {
        size_t n_cells = holds[i]->cells.size();
        const bool is_run = consecutive(cells, n_cells);
        const auto follows = [&](const llama_edgekv_hold & one, const llama_edgekv_hold & last) {
            return is_run && one.parked == last.parked && one.cells.front() == last.cells.back() + 1 &&
                consecutive(cells + n_cells - 1, one.cells.size() + 1);
        };
        for (next = i + 1; next < n && follows(*holds[next], *holds[next - 1]); ++next) {
            n_cells += holds[next]->cells.size();
        }
        each(together{ holds + i, next - i, cells, static_cast<uint32_t>(n_cells) });
        cells += n_cells;
    }
}

// Where the rows of these holds would lie in their cells of a stream; empty: their pages do not fit there.
std::vector<llama_edgekv_held_rows> home_of(const together & those, const ggml_tensor * const * rows, uint32_t stream) {
    const auto & one = *those.holds[0];
    const uint32_t first = those.first();
    bool fits = one.parked && consecutive(those.cells, those.n_cells);
    std::vector<llama_edgekv_held_rows> home;
    for (size_t r = 0; r < one.rows.size(); ++r) {
        home.push_back(llama_edgekv_rows_of(rows[r], stream));
        const auto here  = reinterpret_cast<uintptr_t>(one.rows[r].data + first*one.rows[r].bytes);
        const auto there = reinterpret_cast<uintptr_t>(home[r].data + those.cells[0]*home[r].bytes);
        fits = fits && llama_edgekv_grows(rows[r]) && home[r].unit == one.rows[r].unit && here%home[r].unit == there%home[r].unit;
    }
    return fits ? home : std::vector<llama_edgekv_held_rows>();
}

moves returning(const together & those, const llama_edgekv_mover & mover) {
    return { those.holds[0]->rows, { { those.first(), those.first() + those.n_cells } }, mover };
}

// Once rows have moved nothing needs memory: all of them come back, or none.
void bring_back(
        const together & those, const std::vector<llama_edgekv_held_rows> & home, const std::shared_ptr<llama_edgekv_holds> & to, size_t least,
        const llama_edgekv_mover & mover) {
    const auto parked = those.holds[0]->parked;
    const auto from = those.holds[0]->rows;
    const uint32_t first = those.first();
    std::vector<std::vector<llama_edgekv_held_rows>> homes(static_cast<size_t>(those.n), home);
    std::vector<std::unique_lock<std::mutex>> locks;
    for (int k = 0; k < those.n; ++k) {
        locks.emplace_back(those.holds[k]->moves);
    }
    to->reserve(static_cast<size_t>(those.n), those.cells[0] + those.n_cells);
    for (size_t r = 0; r < home.size(); ++r) {
        const size_t bytes = home[r].bytes;
        char * const there = home[r].data + those.cells[0]*bytes, * const here = from[r].data + first*bytes;
        mover.move(there, here, those.n_cells*bytes, home[r].unit == LLAMA_EDGEKV_HUGE, least);
    }
    const uint32_t * at = those.cells;
    for (int k = 0; k < those.n; ++k) {
        auto & hold = *those.holds[k];
        hold.rows.swap(homes[static_cast<size_t>(k)]);
        hold.parked = nullptr;
        hold.holds  = to;
        std::copy_n(at, hold.cells.size(), hold.cells.begin());
        to->hold(&hold);
        at += hold.cells.size();
    }
    parked->drop(first, first + those.n_cells);
}

}  // namespace

uint32_t llama_edgekv_return(const llama_kv_cache & kv, uint32_t stream, const llama_edgekv_returning & parked, const std::vector<uint32_t> & cells) {
    if (llama_edgekv_access::copies_wait(kv)) {
        return 0;
    }
    std::vector<uint32_t> theirs;
    for (int i = 0; i < parked.n; ++i) {
        const auto first = cells.begin() + parked.first[i];
        theirs.insert(theirs.end(), first, first + static_cast<std::ptrdiff_t>(parked.holds[i]->cells.size()));
    }
    uint32_t n = 0;
    const llama_edgekv_mover mover;
    each_together(parked.holds, parked.n, theirs.data(), [&](const together & those) {
        if (mover.knows() && !home_of(those, parked.rows, stream).empty()) {
            const auto how = returning(those, mover);
            n += how.pays() ? static_cast<uint32_t>(how.with_memory(those.n_cells)) : 0;
        }
    });
    return n;
}

void llama_edgekv_unpark(
        llama_context * lctx, uint32_t stream, llama_edgekv_hold * const * holds, int n, const uint32_t * cells, const ggml_tensor * const * rows,
        uint8_t * back) {
    const auto * kv = llama_edgekv_access::cache(lctx);
    const llama_edgekv_mover mover;
    if (llama_edgekv_access::copies_wait(*kv) || !mover.knows()) {
        return;
    }
    const auto & to = llama_edgekv_access::clock(llama_edgekv_access::cells(*kv, stream)).holding();
    try {
        each_together(holds, n, cells, [&](const together & those) {
            const auto home = home_of(those, rows, stream);
            if (home.empty()) {
                return;
            }
            if (const auto how = returning(those, mover); how.pays()) {
                bring_back(those, home, to, how.least(), mover);
                std::fill_n(back + (those.holds - holds), those.n, uint8_t(1));
            }
        });
    } catch (const std::bad_alloc &) {
        return;  // the others stay parked
    }
}

#else

std::shared_ptr<llama_edgekv_parked> llama_edgekv_parked::take(const std::vector<llama_edgekv_hold *> &) { return nullptr; }

bool llama_edgekv_parked::takes(const std::vector<llama_edgekv_hold *> &) { return false; }

llama_edgekv_parked::~llama_edgekv_parked() = default;

void llama_edgekv_parked::drop(uint32_t, uint32_t) {}

void llama_edgekv_park(llama_kv_cache &, llama_seq_id, llama_pos, llama_pos) {}

llama_edgekv_held_rows llama_edgekv_rows_of(const ggml_tensor * rows, uint32_t stream) {
    return { static_cast<char *>(rows->data) + stream*rows->nb[2], ggml_row_size(rows->type, rows->ne[0]), 1 };
}

bool llama_edgekv_moves(const llama_edgekv_hold &, const std::vector<const ggml_tensor *> &) { return false; }

void llama_edgekv_must_copy(const llama_context *, int, llama_edgekv_hold * const *, int n, const uint8_t *, uint8_t * copied) {
    std::fill_n(copied, n, uint8_t(1));
}

uint32_t llama_edgekv_return(const llama_kv_cache &, uint32_t, const llama_edgekv_returning &, const std::vector<uint32_t> &) { return 0; }

void llama_edgekv_unpark(llama_context *, uint32_t, llama_edgekv_hold * const *, int, const uint32_t *, const ggml_tensor * const *, uint8_t *) {}

#endif
