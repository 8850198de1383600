// The results of an attention run, and their comparison with the reference's.
#pragma once

#include <memory>

#include "attend_instance.h"
#include "checks.h"

namespace test {

// Where a run writes, with gaps and margins that must keep their filling.
struct AttendResults {
    static constexpr float kFill = 12345.0f;
    static constexpr float kMassBase = 0.5f;
    std::vector<float> out, mass_max, mass_sum;

    AttendResults(const AttendCase & c, AttendProblem & p, float out_fill) {
        const size_t gap = c.gaps ? 3 : 0, n_pages = static_cast<size_t>(c.n_pages());
        p.out_stride_head = (static_cast<size_t>(c.v_dim()) + gap) * 4;
        p.out_stride_token = p.out_stride_head * p.n_head + gap * 4;
        p.mass_stride = n_pages + 2;
        out.assign(p.out_stride_token / 4 * c.n_tokens + 1, kFill);
        mass_max.assign(p.mass_stride * c.n_head_kv, kFill);
        mass_sum.assign(p.mass_stride * c.n_head_kv, kFill);
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int h = 0; h < p.n_head; ++h) {
                std::fill_n(out.data() + (t * p.out_stride_token + h * p.out_stride_head) / 4, c.v_dim(), out_fill);
            }
        }
        for (int h = 0; h < c.n_head_kv; ++h) {
            std::fill_n(mass_max.data() + h * p.mass_stride, n_pages, kMassBase);
            std::fill_n(mass_sum.data() + h * p.mass_stride, n_pages, kMassBase);
        }
        p.out = reinterpret_cast<char *>(out.data());
        p.mass_max = c.observe & 1 ? mass_max.data() : nullptr;
        p.mass_sum = c.observe & 2 ? mass_sum.data() : nullptr;
    }
};

// One case's problem, and what the reference leaves of it.
struct AttendTest {
    AttendInstance instance;
    PlacedPages placed;
    std::unique_ptr<RowLists> lists;
    AttendProblem p;  // the reference's, with `want` and `estimated` as results
    std::vector<AttendHits> estimated;
    AttendResults want;

    AttendTest(const AttendCase & c, uint64_t seed, int error_turn)
        : instance(c, seed), placed(c, instance, seed), lists(c.select == Select::all ? nullptr : std::make_unique<RowLists>(c, instance, seed)),
          p(instance.p), estimated(static_cast<size_t>(c.n_head_kv)), want(c, p, 0.0f) {
        if (lists) {
            p.rows = lists->rows();
            p.hits = estimated.data();
            p.error_every = static_cast<int>(seed % 4);  // 0: never
            p.error_turn = error_turn;
        }
        attend_reference(p);
    }
};

// Whose result it is: of which kernels, with how many threads or splits.
struct AttendRun {
    const AttendCase & c;
    const char * kernels;
    int n_shares;
    std::string name() const { return std::string(kernels) + " x" + std::to_string(n_shares) + " " + c.name(); }
};

inline double worst = 0.0;        // error of an output or of mass, in units of the tolerance
inline double worst_error = 0.0;  // of estimated errors

// Ends with the first that differs.
inline void compare(const AttendRun & run, const char * what, const std::vector<float> & got, const std::vector<float> & want, double tolerance) {
    for (size_t i = 0; i < want.size(); ++i) {
        if (!expect_near(run, what, got[i], want[i], tolerance, &worst)) {
            return;
        }
    }
}

struct HitsTolerance {
    double mass;
    double error, each_error;  // relative to the estimated errors, and for each of them
};

// Hits of lists, which were `before`. mass_sum has been added up over tokens, as hits are, but lists differ between tokens: so where there are
// several tokens only the sums over all pages are known. Errors are the reference's own.
inline void check_hits(const AttendRun & run, const RowLists & lists, const PlacedPages & placed, const AttendProblem & reference,
                       const std::vector<AttendHits> & got, const AttendHits & before, const HitsTolerance & tolerance) {
    const AttendCase & c = run.c;
    for (int h = 0; h < c.n_head_kv; ++h) {
        AttendHits want = before;
        for (size_t list = h; list < lists.n_rows.size(); list += c.n_head_kv) {
            want.n_read += lists.n_rows[list];
            for (int i = 0; i < lists.n_rows[list]; ++i) {
                want.n_hits += placed.in_arena(c, h, lists.cells[list * lists.stride + i]);
            }
        }
        for (int page = 0; reference.mass_sum != nullptr && page < c.n_pages(); ++page) {
            const double x = reference.mass_sum[h * reference.mass_stride + page] - static_cast<double>(AttendResults::kMassBase);
            want.mass += x;
            want.mass_hits += placed.in_arena(c, h, page * c.page_tokens) ? x : 0.0;
        }
        const AttendHits & of = got[static_cast<size_t>(h)], & estimated = reference.hits[h];
        expect_equal(run, "n_read", of.n_read, want.n_read);
        expect_equal(run, "n_hits", of.n_hits, want.n_hits);
        expect_equal(run, "n_errors", of.n_errors, before.n_errors + estimated.n_errors);
        if (c.observe & 2) {  // mass by page is that of all tokens
            const double allowed = tolerance.mass + 0x1p-23 * c.n_pages() * c.n_tokens;
            expect_near(run, "mass of the lists", of.mass, want.mass, allowed);
            expect_near(run, "mass in the arena", of.mass_hits, want.mass_hits, allowed);
        }
        if (!(c.low && c.sinks)) {  // beside the sink the squares of the outputs are below what a float holds
            const double allowed = estimated.error * tolerance.error + estimated.n_errors * tolerance.each_error;
            expect_near(run, "estimated error", of.error, before.error + estimated.error, allowed, &worst_error);
        }
    }
}

}  // namespace test
