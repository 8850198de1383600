// How a layer's work divides among many workers: times of real work items on this processor, dealt to simulated workers as the nodes deal them.
//   study_workers [cells] > workers.csv
//
// Workers claim items in the nodes' order from counters. A claim takes the counter's line for so many ns, while others wait: 0 is the ideal, 100 a
// line that another core has written. Memory has no limit here: the times are those of one worker alone. Idle: the share of the workers'
// time in which they neither work nor claim. A barrier stands behind each node, and costs nothing here.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/attend/attend_internal.h"
#include "kernels/prompt/prompt_internal.h"
#include "kernels/select/draw.h"
#include "kernels/select/sample.h"
#include "kernels/sketch/sketch.h"

using namespace edgekv;

namespace {

constexpr int kDim = 128, kGroup = 3, kHeads = 8, kChunk = 16;  // heads of a 3B model; groups of a chunk as in the select node

template <class T>
struct Aligned {
    std::vector<T> all;
    T * at;
    explicit Aligned(size_t n) : all(n + 64 / sizeof(T)), at(reinterpret_cast<T *>((reinterpret_cast<uintptr_t>(all.data()) + 63) / 64 * 64)) {}
};

double ns_of(const std::function<void()> & run) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
}

// The middle of three times of each item, so that what else runs on the machine does not count.
std::vector<double> times(int n, const std::function<void(int)> & item) {
    std::vector<double> all(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
        double t[3];
        for (double & x : t) {
            x = ns_of([&] { item(i); });
        }
        std::sort(t, t + 3);
        all[static_cast<size_t>(i)] = t[1];
    }
    return all;
}

// Workers at one node.
class Crew {
public:
    Crew(int n, double line_ns) : free_at(static_cast<size_t>(n)), lines(kHeads + 1), line_ns(line_ns) {}

    size_t next() const { return static_cast<size_t>(std::min_element(free_at.begin(), free_at.end()) - free_at.begin()); }
    void touch(size_t worker, size_t line) {  // an atomic addition
        const double from = std::max(free_at[worker], lines[line]);
        work_ns += line_ns;
        free_at[worker] = lines[line] = from + line_ns;
    }
    void work(size_t worker, double ns) {
        work_ns += ns;
        free_at[worker] += ns;
    }
    double end() const { return *std::max_element(free_at.begin(), free_at.end()); }

    std::vector<double> free_at, lines;
    const double line_ns;
    double work_ns = 0.0;
};

void say(const char * node, int cells, const char * way, double line_ns, const Crew & crew) {
    const double n = static_cast<double>(crew.free_at.size());
    std::printf("%s,%d,%s,%.0f,%.0f,%.1f,%.2f\n", node, cells, way, n, line_ns, crew.end() / 1e3, 1.0 - crew.work_ns / (n * crew.end()));
}

// The select node: chunks of all heads, and a head's list by who completes it. own_lines: counters by head, as HeadClaims has them; else one counter
// whose line holds the heads' counts too. parts: so many workers share a list, which the code does not do.
void select_node(int cells, const std::vector<double> & chunks, const std::vector<double> & lists, bool own_lines, int parts, int n, double line_ns) {
    Crew crew(n, line_ns);
    const int per_head = static_cast<int>(chunks.size()) / kHeads;
    std::vector<int> taken(kHeads), left(kHeads, per_head), at(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
        at[static_cast<size_t>(i)] = own_lines ? kHeads * i / n : 0;
    }
    std::vector<int> busy(static_cast<size_t>(n), -1);  // the head of the chunk at work
    std::vector<double> shared;  // parts of lists that wait for workers
    for (int n_left = kHeads * per_head; n_left > 0;) {
        const size_t worker = crew.next();  // each step is the earliest, so lines are taken in the order of time
        int & head = at[worker];
        if (busy[worker] >= 0) {
            const size_t h = static_cast<size_t>(busy[worker]);
            busy[worker] = -1;
            n_left -= 1;
            crew.touch(worker, own_lines ? h : 0);
            if (--left[h] == 0) {
                shared.insert(shared.end(), static_cast<size_t>(parts - 1), lists[h] / parts);
                crew.work(worker, lists[h] / parts);
            }
            continue;
        }
        for (int i = 0; i < kHeads && taken[static_cast<size_t>(head)] == per_head; ++i) {
            head = (head + 1) % kHeads;
        }
        const size_t h = static_cast<size_t>(head);
        if (taken[h] < per_head) {
            crew.touch(worker, own_lines ? h : 0);
            crew.work(worker, chunks[h * static_cast<size_t>(per_head) + static_cast<size_t>(taken[h]++)]);
            busy[worker] = head;
        } else if (!shared.empty()) {
            crew.work(worker, shared.back());
            shared.pop_back();
        } else {
            crew.free_at[worker] += 50.0;  // waits
        }
    }
    for (const double ns : shared) {
        crew.work(crew.next(), ns);
    }
    char way[64];
    std::snprintf(way, sizeof way, "%s; a list by %d", own_lines ? "a counter for each head" : "one counter", parts);
    say("select", cells, way, line_ns, crew);
}

// Items from one counter.
void claimed(const char * node, int cells, const char * way, const std::vector<double> & items, int n, double line_ns) {
    Crew crew(n, line_ns);
    for (const double ns : items) {
        const size_t worker = crew.next();
        crew.touch(worker, 0);
        crew.work(worker, ns);
    }
    say(node, cells, way, line_ns, crew);
}

// Attention to every cell: equal shares, then a merge of the shares by the last worker, or pair by pair.
void whole_node(int cells, double all_ns, double merge_ns, bool by_pairs, int n) {
    Crew crew(n, 0.0);
    for (size_t i = 0; i < crew.free_at.size(); ++i) {
        crew.work(i, all_ns / n);
    }
    int n_merges = n;
    if (by_pairs) {
        for (n_merges = 0; 1 << n_merges < n;) {
            ++n_merges;
        }
    }
    crew.work(0, merge_ns * n_merges);
    say("attend whole", cells, by_pairs ? "merged by pairs" : "merged by the last", 0.0, crew);
}

}  // namespace

int main(int argc, char ** argv) {
    const int cells = argc > 1 ? std::atoi(argv[1]) : 32768, n_groups = cells / kGroupCells, n_queries = kHeads * kGroup;
    const Isa isa = isa_best();
    std::mt19937 random(1);
    std::normal_distribution<float> normal;

    // halves from 0.125 on, of either sign
    const size_t n_values = static_cast<size_t>(cells) * kHeads * kDim;
    std::vector<uint16_t> k(n_values), v(n_values);
    for (auto * rows : {&k, &v}) {
        for (uint16_t & x : *rows) {
            x = static_cast<uint16_t>((random() & 1) << 15 | (0x3000 + random() % 0x0e00));
        }
    }
    const size_t row = 2 * kDim, stride = kHeads * row;
    const SketchKeys keys = {CellType::f16, reinterpret_cast<const char *>(k.data()), stride, row};
    Aligned<char> bytes(sketch_bytes(SketchKind::b3, kDim, kHeads, n_groups));
    const Sketch sketch = {SketchKind::b3, kDim, kHeads, n_groups, bytes.at};
    for (int h = 0; h < kHeads; ++h) {
        for (int g = 0; g < n_groups; ++g) {
            sketch_build(sketch, keys, h, g, ~uint64_t{0}, isa);
        }
    }
    std::vector<float> q(static_cast<size_t>(n_queries) * kDim), out(q.size());
    std::generate(q.begin(), q.end(), [&] { return 2.0f * normal(random); });
    const std::vector<Sight> sight(static_cast<size_t>(n_groups), Sight{~uint64_t{0}, 0});

    std::vector<uint16_t> shares(static_cast<size_t>(n_queries) * static_cast<size_t>(cells));
    std::vector<float> tops(static_cast<size_t>(n_queries) * static_cast<size_t>(n_groups)), sums(tops);
    Aligned<char> prepared(sketch_query_bytes(kDim, kGroup)), scratch(sample_scratch_bytes(n_groups, kGroup));
    const auto shares_of = [&](int head) {
        const size_t first = static_cast<size_t>(head * kGroup);
        return Shares{shares.data() + first * static_cast<size_t>(cells), tops.data() + first * static_cast<size_t>(n_groups),
                      sums.data() + first * static_cast<size_t>(n_groups), static_cast<size_t>(cells), static_cast<size_t>(n_groups)};
    };
    const int per_head = n_groups / kChunk;
    const std::vector<double> chunks = times(kHeads * per_head, [&](int i) {
        const int head = i / per_head;
        const SketchQuery query = {reinterpret_cast<const char *>(q.data() + head * kGroup * kDim), sizeof(float) * kGroup * kDim, sizeof(float) * kDim, 1,
                                   kGroup, 1.0f / 12, 0.0f, sight.data(), sight.size()};
        if (i % per_head == 0) {
            sketch_query_prepare(sketch, query, prepared.at, isa);
        }
        sketch_scan(sketch, query, prepared.at, head, i % per_head * kChunk, kChunk, shares_of(head), isa);
    });
    const size_t list_stride = static_cast<size_t>(cells);
    std::vector<int32_t> rows(list_stride * kHeads), n_rows(kHeads), positions(list_stride);
    std::iota(positions.begin(), positions.end(), 0);
    std::vector<float> weights(rows.size());
    const std::vector<double> lists = times(kHeads, [&](int head) {
        const Shares s = shares_of(head);
        const size_t list = static_cast<size_t>(head) * list_stride;
        SampleProblem p{};
        p.n_groups = n_groups;
        p.group = kGroup;
        p.shares = s.cells;
        p.tops = s.tops;
        p.sums = s.sums;
        p.cell_stride = s.cell_stride;
        p.group_stride = s.group_stride;
        p.sight = sight.data();
        p.resolution = 2000.0f;
        p.positions = positions.data();
        p.turn = page_turn(0, head, cells);
        p.rows = rows.data() + list;
        p.weights = weights.data() + list;
        p.scratch = scratch.at;
        n_rows[static_cast<size_t>(head)] = sample_rows(p, isa).n_rows;
    });

    AttendProblem a{};
    a.head_dim = kDim;
    a.n_head = n_queries;
    a.n_head_kv = kHeads;
    a.n_tokens = 1;
    a.n_cells = cells;
    a.page_tokens = 16;
    a.q = reinterpret_cast<const char *>(q.data());
    a.q_stride_head = a.out_stride_head = sizeof(float) * kDim;
    a.q_stride_token = a.out_stride_token = a.q_stride_head * static_cast<size_t>(n_queries);
    a.k = reinterpret_cast<const char *>(k.data());
    a.v = reinterpret_cast<const char *>(v.data());
    a.k_stride_cell = a.v_stride_cell = stride;
    a.k_stride_head = a.v_stride_head = row;
    a.scale = 1.0f / 12;
    a.out = reinterpret_cast<char *>(out.data());
    const auto attend_ns = [&](int n_threads, int first) {  // of the shares from `first` on, one after the other
        Aligned<char> workspace(attend_workspace_bytes(a, n_threads));
        double t[5];
        for (double & x : t) {
            x = 0.0;
            for (int i = 0; i < n_threads; ++i) {
                const double ns = ns_of([&] { attend_run(a, workspace.at, i, n_threads, isa); });
                x += i >= first ? ns : 0.0;
            }
        }
        std::sort(t, t + 5);
        return t[2];
    };
    const double whole_ns = attend_ns(1, 0);
    // the last of 64 shares merges them all; with few cells that is most of its time
    a.n_cells = 64 * kTileCells / kHeads;
    const double last_ns = attend_ns(64, 63), two_ns = attend_ns(64, 62);
    const double part_ns = std::max(0.0, 2 * last_ns - two_ns) / 64;
    a.n_cells = cells;
    a.rows = {rows.data(), weights.data(), n_rows.data(), list_stride};
    int n_tiles = 0;
    for (const int n : n_rows) {
        n_tiles += (n + kTileCells - 1) / kTileCells;
    }
    const std::vector<double> tiles(static_cast<size_t>(n_tiles), attend_ns(1, 0) / n_tiles);
    std::fprintf(stderr, "%s, %d cells: %zu chunks of %.2f us, lists of %.1f us, %d tiles of %.2f us, all rows %.0f us, merging a share %.2f us\n",
                 isa_name(isa), cells, chunks.size(), std::accumulate(chunks.begin(), chunks.end(), 0.0) / 1e3 / static_cast<double>(chunks.size()),
                 std::accumulate(lists.begin(), lists.end(), 0.0) / 1e3 / kHeads, n_tiles, tiles[0] / 1e3, whole_ns / 1e3, part_ns / 1e3);

    std::printf("node,cells,way,workers,line ns,us,idle\n");
    for (const int n : {1, 2, 8, 16, 32, 64}) {
        for (const double line : {0.0, 100.0}) {
            select_node(cells, chunks, lists, false, 1, n, line);
            select_node(cells, chunks, lists, true, 1, n, line);
            select_node(cells, chunks, lists, true, 8, n, line);
            claimed("attend rows", cells, "one counter", tiles, n, line);
        }
        whole_node(cells, whole_ns, part_ns, false, n);
        whole_node(cells, whole_ns, part_ns, true, n);
    }
    return 0;
}
