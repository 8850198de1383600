// What a run of test_attend.cpp leaves, and how it is compared with what the reference leaves.
#pragma once

#include <cstdio>
#include <thread>

#include "attend_instance.h"
#include "kernels/attend/attend_internal.h"

namespace edgekv {
namespace {

// Where a run writes, with gaps and margins that must keep their filling.
struct Results {
    static constexpr float kFill = 12345.0f;
    static constexpr float kMassBase = 0.5f;
    std::vector<float> out, mass_max, mass_sum;

    Results(const Case & c, AttendProblem & p, float out_fill) {
        const size_t gap = c.gaps ? 3 : 0;
        const size_t pages = (static_cast<size_t>(c.n_cells) + c.page_tokens - 1) / c.page_tokens;
        p.out_stride_head = (static_cast<size_t>(c.head_dim) + gap) * 4;
        p.out_stride_token = p.out_stride_head * p.n_head + gap * 4;
        p.mass_stride = pages + 2;
        out.assign(p.out_stride_token / 4 * c.n_tokens + 1, kFill);
        mass_max.assign(p.mass_stride * c.n_head_kv, kFill);
        mass_sum.assign(p.mass_stride * c.n_head_kv, kFill);
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int h = 0; h < p.n_head; ++h) {
                float * row = out.data() + (t * p.out_stride_token + h * p.out_stride_head) / 4;
                std::fill(row, row + c.head_dim, out_fill);
            }
        }
        for (int h = 0; h < c.n_head_kv; ++h) {
            std::fill_n(mass_max.data() + h * p.mass_stride, pages, kMassBase);
            std::fill_n(mass_sum.data() + h * p.mass_stride, pages, kMassBase);
        }
        p.out = reinterpret_cast<char *>(out.data());
        p.mass_max = c.observe & 1 ? mass_max.data() : nullptr;
        p.mass_sum = c.observe & 2 ? mass_sum.data() : nullptr;
    }
};

// Every share once; nothing waits inside a call, so the shares may also come one after the other, from any first one.
template <typename Share>
void in_shares(int n_threads, bool threads, const Share & share) {
    if (!threads) {
        for (int i = 0; i < n_threads; ++i) {
            share((i + 1) % n_threads);
        }
        return;
    }
    std::vector<std::thread> pool;
    for (int i = 0; i < n_threads; ++i) {
        pool.emplace_back([&, i] { share(i); });
    }
    for (std::thread & t : pool) {
        t.join();
    }
}

void run(const char * kernels, const AttendProblem & p, char * workspace, int n_threads, bool threads) {
    const AttendKernels & table = *attend_kernels(kernels);
    in_shares(n_threads, threads, [&](int i) { attend_run_with(table, p, workspace, i, n_threads); });
    if (p.mass_max != nullptr || p.mass_sum != nullptr) {
        in_shares(n_threads, threads, [&](int i) { attend_observe_with(table, p, workspace, i, n_threads); });
    }
}

// What no number of threads may change, with lists: every bit of it.
struct Bits {
    std::vector<float> out, mass_max, mass_sum;
    std::vector<AttendHits> hits;

    bool operator==(const Bits & other) const {
        const auto same = [](const auto & a, const auto & b) {
            return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
        };
        return same(out, other.out) && same(mass_max, other.mass_max) && same(mass_sum, other.mass_sum) && same(hits, other.hits);
    }
};

// Who made a result.
struct Made {
    const Case & c;
    const char * kernels;
    int n_threads;
};

int failures = 0;
double worst = 0.0, worst_error = 0.0;  // in units of the tolerance; of estimated errors

void fail(const Made & by, const char * what, double got, double want) {
    if (++failures <= 20) {
        std::printf("FAIL %s x%d: %s: got %g, want %g [%s]\n", by.kernels, by.n_threads, what, got, want, by.c.name().c_str());
    }
}

void compare(const Made & by, const char * what, const std::vector<float> & got, const std::vector<float> & want, double tolerance) {
    for (size_t i = 0; i < want.size(); ++i) {
        const double error = std::fabs(static_cast<double>(got[i]) - want[i]);
        if (!(error <= tolerance)) {
            return fail(by, what, got[i], want[i]);
        }
        worst = std::max(worst, error / tolerance);
    }
}

void check_hits(const Made & by, const Lists & lists, const Results & want, const AttendProblem & p, double mass_tolerance,
                double error_tolerance) {
    const Case & c = by.c;
    const int pages = (c.n_cells + c.page_tokens - 1) / c.page_tokens;
    for (int h = 0; h < c.n_head_kv; ++h) {
        const AttendHits &hits = lists.hits[static_cast<size_t>(h)], &wanted = lists.want_hits[static_cast<size_t>(h)];
        if (hits.n_read != wanted.n_read) {
            fail(by, "n_read", hits.n_read, wanted.n_read);
        }
        if (hits.n_hits != wanted.n_hits) {
            fail(by, "n_hits", hits.n_hits, wanted.n_hits);
        }
        double mass = 0.0, mass_hits = 0.0;
        for (int i = 0; i < pages; ++i) {
            const double of_page = want.mass_sum[h * p.mass_stride + i] - Results::kMassBase;
            mass += of_page;
            mass_hits += lists.slots[static_cast<size_t>(h * pages + i)] >= 0 ? of_page : 0.0;
        }
        const double allowed = mass_tolerance + 0x1p-22 * pages * c.n_tokens;
        const bool counts_all = (c.observe & 2) != 0;  // mass by page is that of all tokens
        if (counts_all && !(std::fabs(hits.mass - mass) <= allowed)) {
            fail(by, "mass", hits.mass, mass);
        }
        if (counts_all && !(std::fabs(hits.mass_hits - mass_hits) <= allowed)) {
            fail(by, "mass in the arena", hits.mass_hits, mass_hits);
        }
        if (hits.n_errors != wanted.n_errors) {
            fail(by, "n_errors", hits.n_errors, wanted.n_errors);
        }
        if (c.low && c.sinks) {
            continue;  // beside the sink the squares of the outputs are below what a float holds
        }
        const double error = std::fabs(hits.error - wanted.error);
        if (!(error <= (wanted.error + wanted.n_errors) * error_tolerance)) {
            fail(by, "estimated error", hits.error, wanted.error);
        }
        worst_error = wanted.n_errors > 0 ? std::max(worst_error, error / (wanted.error + wanted.n_errors) / error_tolerance) : worst_error;
    }
}

// The least length of an output that is not zero.
double shortest_output(const Case & c, const AttendProblem & p, const Results & want) {
    double shortest = kInf;
    for (int t = 0; t < c.n_tokens; ++t) {
        for (int h = 0; h < p.n_head; ++h) {
            const float * row = want.out.data() + (t * p.out_stride_token + h * p.out_stride_head) / 4;
            double square = 0.0;
            for (int i = 0; i < c.head_dim; ++i) {
                square += static_cast<double>(row[i]) * row[i];
            }
            shortest = square > 0.0 ? std::min(shortest, std::sqrt(square)) : shortest;
        }
    }
    return shortest;
}

}  // namespace
}  // namespace edgekv
