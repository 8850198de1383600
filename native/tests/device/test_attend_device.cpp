// Checks the device's decode attention against attend_reference().
//   test_attend_device              a part of the matrix
//   test_attend_device all          all of it
//
// Tolerances as in tests/host/test_attend.cpp, with the device's exponential (2 units, and one more for its argument), and a
// chain of at most 8 + 5 additions for a score.
#include "cuda/kernels/attend_device.cu"
#include "cuda/kernels/attend_lists.cu"
#include "cuda/kernels/attend_merge.cu"

#include "attend_walk.h"
#include "device_array.h"
#include "spoilt_rows.h"

using namespace edgekv;
using namespace test;

namespace {

double n_errors_all = 0.0;

double tolerance_of(const AttendCase & c, const AttendInstance & instance) {
    const double u = 0x1p-24, s = instance.score;
    const double logit = u * (3.5 * std::sqrt(13.0) * s + 2 * (s + instance.largest_bias + c.softcap) + 8);
    return 2 * (2 * logit + 3.5 * std::sqrt(c.n_cells) * u);
}

constexpr AttendHits kHitsBefore = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0};
constexpr uint32_t kUbatch = 2;

// A problem in device memory, with K and V at home in pinned memory.
struct OnDevice {
    AttendProblem p;
    DeviceArray<char> q, k, v, mask, arena;
    DeviceArray<float> sinks, out, mass_max, mass_sum, weights;
    DeviceArray<int32_t> cells, n_rows, slots;
    DeviceArray<AttendHits> hits;
    DeviceArray<uint32_t> n_ubatch{std::vector<uint32_t>{kUbatch}}, tickets;
    std::vector<DeviceArray<char>> ring_data;
    std::vector<DeviceArray<uint8_t>> ring_held;
    std::vector<gpu::Ring> rings;

    OnDevice(const AttendCase & c, const AttendProblem & problem, const AttendInstance & instance, const AttendResults & results,
             const RowLists * lists, const PlacedPages & placed)
        : p(problem), q(instance.q), k(placed.k, true), v(placed.v, true), mask(instance.mask), arena(placed.arena), sinks(instance.sinks),
          out(results.out), mass_max(results.mass_max), mass_sum(results.mass_sum), slots(placed.slots),
          tickets(static_cast<size_t>(c.n_head_kv)) {
        p.q = q.data();
        p.k = k.data();
        p.v = v.data();
        p.mask = mask.data();
        p.sinks = sinks.data();
        p.out = reinterpret_cast<char *>(out.data());
        p.mass_max = mass_max.or_null(problem.mass_max != nullptr);
        p.mass_sum = mass_sum.or_null(problem.mass_sum != nullptr);
        if (lists != nullptr) {
            cells = DeviceArray<int32_t>(lists->cells);
            weights = DeviceArray<float>(lists->weights);
            n_rows = DeviceArray<int32_t>(lists->n_rows);
            p.rows = {cells.data(), weights.or_null(lists->weighted), n_rows.data(), lists->stride};
            hits = DeviceArray<AttendHits>(std::vector<AttendHits>(static_cast<size_t>(c.n_head_kv), kHitsBefore));
            p.error_turn = problem.error_turn - static_cast<int>(kUbatch);
            p.hits = hits.data();
        }
        p.arena = placed.in(c, arena.data(), slots.data());
        for (const PlacedPages::Ring & ring : placed.rings) {
            ring_data.emplace_back(ring.data);
            ring_held.emplace_back(ring.held);
            rings.push_back({ring_data.back().or_null(c.ring), ring.first_page, ring.end_page, c.n_head_kv, ring_held.back().data()});
        }
    }

    AttendResults run(const AttendCase & c, AttendResults results, int n_splits) {
        out.set(results.out);
        mass_max.set(results.mass_max);
        mass_sum.set(results.mass_sum);
        const int n_parts = static_cast<int>(rings.size()), n_partials = n_parts * n_splits;
        const size_t bytes = gpu::attend_device_workspace_bytes(p, n_partials, c.observe != 0 || p.error_every > 0);
        const DeviceArray<char> workspace(std::vector<char>(bytes, static_cast<char>(0xff)));
        for (int i = 0; i < n_parts; ++i) {
            const gpu::Ring & ring = rings[static_cast<size_t>(i)];
            gpu::launch_attend(p, {ring.first_page, ring.end_page, i * n_splits, n_splits, ring, false}, workspace.data(), n_partials, nullptr);
        }
        gpu::launch_attend_merge(p, {0, c.n_pages(), 0, 0, {}, false, tickets.data(), n_ubatch.data()}, workspace.data(), n_partials, nullptr);
        must(gpu::stream_sync(nullptr));
        results.out = out.get();
        results.mass_max = mass_max.get();
        results.mass_sum = mass_sum.get();
        return results;
    }
};

void check_case(const AttendCase & c, uint64_t seed) {
    const AttendTest test(c, seed, static_cast<int>(kUbatch + seed % 3));
    const AttendInstance & instance = test.instance;
    const AttendResults & want = test.want;
    const double tolerance = tolerance_of(c, instance), mass_tolerance = tolerance * c.group * c.n_tokens;
    AttendProblem p = test.p;
    const AttendResults empty(c, p, kNan);
    OnDevice d(c, p, instance, empty, test.lists.get(), test.placed);
    if (!expect(gpu::attend_device_supports(d.p), AttendRun{c, "device", 0}, "supported")) {
        return;
    }
    const int counts[] = {1, 2, 3, 7, 19};
    for (int variant = 0; variant < 2; ++variant) {
        const AttendRun by{c, "splits", counts[(seed + seed / 5 + 2 * static_cast<uint64_t>(variant)) % 5]};
        const AttendResults got = d.run(c, empty, by.n_shares);
        compare(by, "out", got.out, want.out, tolerance * instance.v_max);
        compare(by, "mass_max", got.mass_max, want.mass_max, mass_tolerance);
        compare(by, "mass_sum", got.mass_sum, want.mass_sum, mass_tolerance);
        if (variant == 0 && test.lists) {
            // an output that is next to nothing beside what it sums up is known less well
            const std::vector<AttendHits> hits = d.hits.get();
            check_hits(by, *test.lists, test.placed, test.p, hits, kHitsBefore, {mass_tolerance, 1e-3, mass_tolerance});
            for (int h = 0; h < c.n_head_kv; ++h) {
                expect(c.observe != 0 || (hits[h].mass == kHitsBefore.mass && hits[h].mass_hits == kHitsBefore.mass_hits), by,
                       "mass that nobody observed", hits[h].mass, kHitsBefore.mass);
                n_errors_all += test.estimated[h].n_errors;
            }
        }
        if (variant > 0 && !kFew) {  // once more, in another order of blocks and threads
            const AttendResults again = d.run(c, empty, by.n_shares);
            expect(same(again.out, got.out) && same(again.mass_sum, got.mass_sum), by, "the same bits in a second run");
        }
    }
}

void check_spoilt(const AttendCase & c, uint64_t seed) {
    AttendInstance instance(c, seed);
    AttendProblem p = instance.p;
    AttendResults want(c, p, 0.0f);
    p.mass_max = p.mass_sum = nullptr;
    attend_reference(p);
    const auto attend = [&] {
        const PlacedPages placed(c, instance, seed);
        return OnDevice(c, p, instance, want, nullptr, placed).run(c, want, 3).out;
    };
    test::check_spoilt({c, "splits", 3}, instance, p, seed, want.out, tolerance_of(c, instance) * instance.v_max, attend);
}

void check_all(int n_each, double work) {
    const AttendWalk walk = {{64, 80, 96, 128, 256, 72, 112, 192}, {1, 2, 3, 4, 5, 7, 8, 12, 16}, {1, 1, 2, 3, 5, 16},
                             {1, 15, 16, 17, 27, 61, 113, 482, 577, 1110, 1541, 2047, 3330}, n_each, work, true};
    const uint64_t n = walk_attend_cases(walk, [](const AttendCase & c, uint64_t seed) {
        check_case(c, seed);
        if (c.select == Select::all && c.n_tokens > 1) {
            check_spoilt(c, seed);
        }
    });
    std::printf("%llu cases, largest error %.3f of the tolerance, of an estimated error %.3f; %.0f errors were estimated\n",
                static_cast<unsigned long long>(n), worst, worst_error, n_errors_all);
    CHECK(n_errors_all >= 10, "of %llu cases", static_cast<unsigned long long>(n));
}

// The kernels refuse problems that they would read wrongly.
void check_supports() {
    const auto check = [](bool want, const char * what, auto change) {
        AttendProblem p{};
        p.head_dim = 128, p.n_head = 8, p.n_head_kv = 2, p.n_tokens = 1, p.n_cells = 256, p.page_tokens = 16;
        p.q_stride_head = 512, p.q_stride_token = 4096;
        p.k_stride_head = p.v_stride_head = 256, p.k_stride_cell = p.v_stride_cell = 512;
        change(p);
        CHECK(gpu::attend_device_supports(p) == want, "%s", what);
    };
    check(true, "a plain problem", [](AttendProblem &) {});
    check(true, "groups of 16", [](AttendProblem & p) { p.n_head = 32; });
    check(false, "groups of 17", [](AttendProblem & p) { p.n_head = 34; });
    check(false, "heads that do not divide", [](AttendProblem & p) { p.n_head = 7; });
    check(true, "head_dim 72", [](AttendProblem & p) { p.head_dim = 72; });
    check(false, "head_dim 88", [](AttendProblem & p) { p.head_dim = 88; });
    check(false, "head_dim 512", [](AttendProblem & p) { p.head_dim = 512; });
    check(false, "q8_0 of 80", [](AttendProblem & p) { p.head_dim = 80, p.v_type = CellType::q8_0; });
    check(false, "q4_0 of 72", [](AttendProblem & p) { p.head_dim = 72, p.k_type = CellType::q4_0; });
    check(true, "q4_0 rows off 16 bytes", [](AttendProblem & p) { p.v_type = CellType::q4_0, p.v_stride_head = 74; });
    check(false, "q4_0 rows at odd bytes", [](AttendProblem & p) { p.k_type = CellType::q4_0, p.k_stride_head = 73; });
    check(false, "f16 rows off 16 bytes", [](AttendProblem & p) { p.k_stride_cell = 520; });
    check(true, "q8_0 rows off 16 bytes", [](AttendProblem & p) { p.k_type = CellType::q8_0, p.k_stride_head = 138; });
    check(false, "q8_0 rows at odd bytes", [](AttendProblem & p) { p.v_type = CellType::q8_0, p.v_stride_head = 137; });
    check(false, "17 tokens", [](AttendProblem & p) { p.n_tokens = 17; });
    check(false, "pages of 24", [](AttendProblem & p) { p.page_tokens = 24; });
}

}  // namespace

int main(int argc, char ** argv) {
    check_supports();
    if (argc > 1 && std::strcmp(argv[1], "all") == 0) {
        check_all(117, 1e6);
    } else {
        check_all(kFew ? 2 : 8, 1e5);
    }
    return finish();
}
