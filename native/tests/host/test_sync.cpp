// Pages::sync() against a look at every cell, through random events; and that it looks at what changed only.
#include "cache/pages.h"

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <string>

#include "checks.h"
#include "fake_cells.h"

using namespace edgekv;
using test::expect;

namespace {

// The place of a check among the random events.
struct Step {
    int seed, step;
    std::string name() const { return "seed " + std::to_string(seed) + " step " + std::to_string(step); }
};

PageShape shape_of(int n_stream, int n_cells, int page_tokens) {
    const int pages = (n_cells + page_tokens - 1) / page_tokens;
    return { 2, 2, n_stream, n_cells, page_tokens, pages, n_stream * pages, 64 };
}

// a placement as prepare() makes it: tried, and rolled back
void try_and_undo(FakeCells & cells, int first, int n) {
    std::vector<uint64_t> times;
    for (int c = first; c < first + n; ++c) {
        times.push_back(cells.clock.get(c));
        cells.clock.touch(c);
    }
    for (int c = first; c < first + n; ++c) {
        cells.clock.set(c, times[c - first]);
    }
}

// What a look at a page finds: its newest and oldest positions, whether some of its cells changed since `then`, and whether all occupied ones did.
struct Look {
    int32_t newest = -1, oldest = std::numeric_limits<int32_t>::max();
    bool changed = false, whole = true;

    Look(const FakeCells & cells, int first, int end, uint64_t then) {
        for (int c = first; c < std::min(end, static_cast<int>(cells.pos.size())); ++c) {
            const bool is_new = cells.clock.times()[c] > then;
            changed = changed || is_new;
            if (cells.pos[c] >= 0) {
                newest = std::max(newest, cells.pos[c]);
                oldest = std::min(oldest, cells.pos[c]);
                whole = whole && is_new;
            }
        }
    }
};

// Every group with a key in it is sketched, named, or open; what is named changed since its sketch, and what is open holds keys, but not in every cell.
void check_groups(const StaleGroups & stale_groups, const FakeCells & cells, int stream, int n_cells, const std::vector<uint64_t> & sketched,
                  const std::vector<bool> & touched, const Step & at) {
    for (int group = 0; group < static_cast<int>(sketched.size()); ++group) {
        uint64_t valid = 0;
        for (int c = group * kGroupCells; c < std::min((group + 1) * kGroupCells, n_cells); ++c) {
            valid |= cells.pos[c] >= 0 ? uint64_t{1} << (c - group * kGroupCells) : 0;
        }
        bool named = false;
        for (const StaleGroup & stale : stale_groups.to_build()) {
            named = named || (stale.stream == stream && stale.group == group && stale.valid == valid);
        }
        const bool open = stale_groups.is_open(stream, group);
        expect(!(open && named), at, "a group is open or named");
        expect(valid == 0 || open || named || sketched[group] == valid, at, "a group has a true sketch");
        expect(!named || (valid != 0 && touched[group]), at, "a named group has keys, and changed");
        expect(!open || (valid != 0 && ~valid != 0), at, "an open group is neither full nor empty");
    }
}

void fuzz(int seed) {
    std::mt19937 rng(seed);
    const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };

    const int n_stream = 1 + below(3);
    const int page_tokens = 16 << below(3);
    const int n_cells = 256 + below(40) * 16 + below(2) * 8;
    FakeCache cache(n_stream, FakeCells(n_cells));
    Pages pages;
    pages.shape(shape_of(n_stream, n_cells, page_tokens), 64);

    const int n_pages = (n_cells + page_tokens - 1) / page_tokens, n_groups = (n_cells + kGroupCells - 1) / kGroupCells;
    std::vector<std::vector<uint64_t>> sketched(n_stream, std::vector<uint64_t>(n_groups, 0));
    std::vector<std::vector<bool>> touched(n_stream, std::vector<bool>(n_groups));
    std::vector<uint64_t> then(n_stream, 0);  // the last sync
    std::set<int32_t> changed;                // since the last delivery
    bool delivered = false;
    int32_t position = 0;
    for (int step = 0; step < 300; ++step) {
        const Step at{seed, step};
        FakeCells & cells = cache[below(n_stream)];
        const int first = below(n_cells);
        const int n = 1 + below(std::min(n_cells - first, below(4) ? 40 : n_cells));
        switch (below(12)) {
            case 0: cells.clock.touch_all(); break;
            case 1:  // more than the log holds
                for (int i = 0; i < 1500; ++i) {
                    cells.clock.touch(below(n_cells));
                }
                break;
            case 2: try_and_undo(cells, first, n); break;
            case 3:
                for (int c = first; c < first + n; ++c) {
                    cells.remove(c);
                }
                break;
            case 4:
                for (int c = first + n - 1; c >= first; c -= 1 + below(5)) {
                    cells.clock.touch(c);
                }
                break;
            case 5: break;
            default:
                try_and_undo(cells, first, n);
                for (int c = first; c < first + n; ++c) {
                    cells.store(c, position++);
                }
        }

        const bool sketches = below(3) > 0;
        pages.sync(as_context(cache), n, sketches);

        if (delivered) {
            changed.clear();
        }
        for (int s = 0; s < n_stream; ++s) {
            auto found = pages.cells.changed_now(s).begin();
            for (int page = 0; page < n_pages; ++page) {
                const Look look(cache[s], page * page_tokens, (page + 1) * page_tokens, then[s]);
                expect(pages.cells.newest(s)[page] == look.newest && pages.cells.oldest(s)[page] == look.oldest, at, "the newest and the oldest position");
                if (look.changed) {
                    changed.insert(s * n_pages + page);
                    const bool told = found != pages.cells.changed_now(s).end() && found->page == s * n_pages + page;
                    expect(told && found->newest == look.newest && found->whole == look.whole, at, "a page that changed, in part or as a whole");
                    found += told;
                }
            }
            expect(found == pages.cells.changed_now(s).end(), at, "no other page changed");
            for (int group = 0; group < n_groups; ++group) {
                touched[s][group] = touched[s][group] || Look(cache[s], group * kGroupCells, (group + 1) * kGroupCells, then[s]).changed;
            }
            then[s] = cache[s].clock.now();
        }
        expect(pages.cells.changed_pages() == std::vector<int32_t>(changed.begin(), changed.end()), at, "what changed since the delivery");
        expect(sketches || pages.stale.to_build().empty(), at, "nothing is sketched, no group is named");
        for (int s = 0; sketches && s < n_stream; ++s) {
            check_groups(pages.stale, cache[s], s, n_cells, sketched[s], touched[s], at);
        }
        if (sketches && below(2)) {
            for (const StaleGroup & built : pages.stale.to_build()) {
                sketched[built.stream][built.group] = built.valid;
                touched[built.stream][built.group] = false;
            }
            pages.stale.built();
        }
        if (below(20) == 0) {
            pages.stale.mark_all();
            std::fill(touched.begin(), touched.end(), std::vector<bool>(n_groups, true));
        }
        if ((delivered = below(4) > 0)) {
            pages.cells.changes_delivered();
        }
    }
}

// Sequences that are answered in turn fill a group each: none is sketched before it is full, and each is sketched once. What stops growing is
// sketched with the next token.
void fill_in_turn() {
    constexpr int n_seq = 3;
    FakeCache cache(1, FakeCells(1024));
    Pages pages;
    pages.shape(shape_of(1, 1024, 16), 64);
    const auto sketched_with = [&](int n_growing, int position) {
        for (int seq = 0; seq < n_growing; ++seq) {
            cache[0].store(seq * kGroupCells + position % kGroupCells + position / kGroupCells * n_seq * kGroupCells, position);
        }
        pages.sync(as_context(cache), n_growing, true);
        const int n = static_cast<int>(pages.stale.to_build().size());
        pages.stale.built();
        return n;
    };
    for (int position = 0; position < 100; ++position) {
        CHECK(sketched_with(n_seq, position) == (position == kGroupCells - 1 ? n_seq : 0), "a group is sketched when it is full");
        CHECK(static_cast<int>(pages.stale.open_groups().size()) == (position % kGroupCells == kGroupCells - 1 ? 0 : n_seq), "the others are open");
    }
    CHECK(sketched_with(n_seq - 1, 100) == 1, "a sequence that pauses has its group sketched");
    CHECK(sketched_with(n_seq - 1, 101) == 0, "once");
    CHECK(sketched_with(n_seq, 102) == 0, "and open again when it goes on");
}

// cells that one decoded token looks at, in a cache of so many
uint64_t looked_per_token(int n_cells, bool sketches) {
    FakeCache cache(1, FakeCells(n_cells));
    Pages pages;
    pages.shape(shape_of(1, n_cells, 16), 64);
    int position = 0;
    for (; position < 200; ++position) {
        cache[0].store(position, position);
    }
    pages.sync(as_context(cache), 200, sketches);
    pages.stale.built();

    const uint64_t before = pages.n_looked();
    for (int i = 0; i < 64; ++i, ++position) {
        try_and_undo(cache[0], position, 1);
        cache[0].store(position, position);
        pages.sync(as_context(cache), 1, sketches);
        if (sketches) {
            pages.stale.built();
        }
    }
    return (pages.n_looked() - before) / 64;
}

}  // namespace

int main() {
    for (int seed = 0; seed < 40; ++seed) {
        fuzz(seed);
    }
    fill_in_turn();
    for (const bool sketches : { false, true }) {
        const uint64_t few = looked_per_token(1 << 10, sketches), many = looked_per_token(1 << 20, sketches);
        std::printf("cells looked at for a token, %s sketches: %llu of a thousand, %llu of a million\n", sketches ? "with" : "without",
                    static_cast<unsigned long long>(few), static_cast<unsigned long long>(many));
        CHECK(few == many && many <= 128, "a token's work must not grow with the number of cells");
    }
    return test::finish();
}
