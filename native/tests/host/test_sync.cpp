// Pages::sync() against one that looks at every cell, through random events; and that it looks at what changed only.
#include "cache/pages.h"

#include <algorithm>
#include <random>
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

bool before(const StaleGroup & a, const StaleGroup & b) { return a.stream != b.stream ? a.stream < b.stream : a.group < b.group; }

std::vector<StaleGroup> sorted(std::vector<StaleGroup> groups) {
    std::sort(groups.begin(), groups.end(), before);
    return groups;
}

bool same(const StaleGroup & a, const StaleGroup & b) { return a.stream == b.stream && a.group == b.group && a.valid == b.valid; }

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

std::vector<int32_t> open_of(const StaleGroups & stale) {
    std::vector<int32_t> open = stale.open_groups();
    std::sort(open.begin(), open.end());
    return open;
}

// Every group with a key in it is sketched, named, or open; and what is open holds keys, but not in every cell.
void check_groups(const StaleGroups & stale_groups, const FakeCells & cells, int stream, int n_cells, const std::vector<uint64_t> & sketched, const Step & at) {
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
        expect(!(named && valid == 0), at, "a named group has keys");
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
    Pages ours, all;
    ours.shape(shape_of(n_stream, n_cells, page_tokens), 64);
    all.shape(shape_of(n_stream, n_cells, page_tokens), 64);

    std::vector<std::vector<uint64_t>> sketched(n_stream, std::vector<uint64_t>((n_cells + kGroupCells - 1) / kGroupCells, 0));
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
        g_uses_log = true;
        ours.sync(as_context(cache), n, sketches);
        g_uses_log = false;
        all.sync(as_context(cache), n, sketches);

        expect(ours.cells.changed_pages() == all.cells.changed_pages(), at, "the same pages changed");
        for (int s = 0; s < n_stream; ++s) {
            const int pages = (n_cells + page_tokens - 1) / page_tokens;
            expect(std::equal(ours.cells.newest(s), ours.cells.newest(s) + pages, all.cells.newest(s)), at, "the same newest positions");
            expect(std::equal(ours.cells.oldest(s), ours.cells.oldest(s) + pages, all.cells.oldest(s)), at, "the same oldest positions");
            for (int page = 0; page < pages; ++page) {  // and both are what the cells say
                int32_t newest = -1;
                for (int c = page * page_tokens; c < std::min((page + 1) * page_tokens, n_cells); ++c) {
                    newest = std::max(newest, cache[s].pos[c]);
                }
                expect(ours.cells.newest(s)[page] == newest, at, "the newest position");
            }
        }
        const auto a = sorted(ours.stale.to_build()), b = sorted(all.stale.to_build());
        expect(a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same), at, "the same groups are stale");
        expect(sketches || a.empty(), at, "nothing is sketched, no group is named");
        expect(open_of(ours.stale) == open_of(all.stale), at, "the same groups are open");
        for (int s = 0; sketches && s < n_stream; ++s) {
            check_groups(ours.stale, cache[s], s, n_cells, sketched[s], at);
        }
        if (sketches && below(2)) {
            for (const StaleGroup & built : ours.stale.to_build()) {
                sketched[built.stream][built.group] = built.valid;
            }
            ours.stale.built();
            all.stale.built();
        }
        if (below(20) == 0) {
            ours.stale.mark_all();
            all.stale.mark_all();
        }
        if (below(4)) {
            ours.cells.changes_delivered();
            all.cells.changes_delivered();
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
    g_uses_log = true;
    for (const bool sketches : { false, true }) {
        const uint64_t few = looked_per_token(1 << 10, sketches), many = looked_per_token(1 << 20, sketches);
        std::printf("cells looked at for a token, %s sketches: %llu of a thousand, %llu of a million\n", sketches ? "with" : "without",
                    static_cast<unsigned long long>(few), static_cast<unsigned long long>(many));
        CHECK(few == many && many <= 128, "a token's work must not grow with the number of cells");
    }
    return test::finish();
}
