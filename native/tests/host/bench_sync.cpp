// Times Pages::sync() on one thread: what a decoded token pays to find out which cells changed.
//   bench_sync [rounds=2000]
// Prints medians in microseconds by the number of cells, with the log of changes and without it (every cell looked at).
#include "pages/pages.h"

#include <cstdio>
#include <cstdlib>

#include "dense_problem.h"
#include "fake_cells.h"

using namespace edgekv;

namespace {

double median_us(int n_cells, int rounds, bool uses_log) {
    const int n_pages = n_cells / 16;
    FakeCache cache(1, FakeCells(n_cells));
    Pages pages;
    pages.shape({ 2, 2, 1, n_cells, 16, n_pages, n_pages, 64 }, 64);
    g_uses_log = uses_log;
    for (int c = 0; c < n_cells - rounds; ++c) {
        cache[0].store(c, c);
    }
    pages.sync(as_context(cache), 0, true);
    pages.stale.built();

    std::vector<double> times;
    for (int c = n_cells - rounds; c < n_cells; ++c) {
        cache[0].store(c, c);
        const double ns = test::time_ns(1, [&] {
            pages.sync(as_context(cache), 1, true);
            pages.stale.built();
        });
        times.push_back(ns / 1e3);
        pages.cells.changes_delivered();
    }
    return test::median(times);
}

}  // namespace

int main(int argc, char ** argv) {
    const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 2000;
    std::printf("%9s  %10s  %10s\n", "cells", "log, us", "all, us");
    for (const int n_cells : { 1 << 13, 1 << 17, 1 << 20 }) {
        std::printf("%9d  %10.2f  %10.2f\n", n_cells, median_us(n_cells, std::min(rounds, n_cells / 2), true),
                    median_us(n_cells, std::min(rounds, 50), false));
    }

    return 0;
}
