// Checks the device's decode attention against attend_reference().
//   test_attend_device              a part of the matrix
//   test_attend_device all          all of it
//   test_attend_device --bench N    times N cells on a GPU
//
// Tolerances as in tests/host/test_attend.cpp, with the device's exponential (2 units, and one more for its argument), and a
// chain of at most 8 + 5 additions for a score.
#include "cuda/kernels/attend_device.cu"
#include "cuda/kernels/attend_error.cu"
#include "cuda/kernels/attend_lists.cu"
#include "cuda/kernels/attend_merge.cu"
#include "attend_bench.h"
#include "attend_setup.h"
#include "spoilt_rows.h"

using namespace edgekv;
using namespace setup;

namespace {

int failures = 0;
double worst = 0.0;  // error in units of the tolerance
double n_errors_all = 0.0;

void fail(const Case & c, int n_splits, const char * what, double got, double want) {
    if (++failures <= 20) {
        std::printf("FAIL splits %d: %s: got %g, want %g [%s]\n", n_splits, what, got, want, c.name().c_str());
    }
}

void compare(const Case & c, int n_splits, const char * what, const std::vector<float> & got, const std::vector<float> & want,
             double tolerance) {
    for (size_t i = 0; i < want.size(); ++i) {
        const double error = std::fabs(static_cast<double>(got[i]) - want[i]);
        if (!(error <= tolerance)) {
            return fail(c, n_splits, what, got[i], want[i]);
        }
        worst = std::max(worst, tolerance > 0.0 ? error/tolerance : 0.0);
    }
}

// Where a run writes, with gaps and margins that must keep their filling.
struct Results {
    static constexpr float kFill = 12345.0f;
    static constexpr float kMassBase = 0.5f;
    std::vector<float> out, mass_max, mass_sum;

    Results(const Case & c, AttendProblem & p, float out_fill) {
        const size_t gap = c.gaps ? 3 : 0, n_pages = static_cast<size_t>(c.n_pages());
        p.out_stride_head  = (static_cast<size_t>(c.head_dim) + gap)*4;
        p.out_stride_token = p.out_stride_head*p.n_head + gap*4;
        p.mass_stride      = n_pages + 2;
        out.assign(p.out_stride_token/4*c.n_tokens, kFill);
        mass_max.assign(p.mass_stride*c.n_head_kv, kFill);
        mass_sum.assign(p.mass_stride*c.n_head_kv, kFill);
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int h = 0; h < p.n_head; ++h) {
                float * row = out.data() + (t*p.out_stride_token + h*p.out_stride_head)/4;
                std::fill(row, row + c.head_dim, out_fill);
            }
        }
        for (int h = 0; h < c.n_head_kv; ++h) {
            std::fill_n(mass_max.data() + h*p.mass_stride, n_pages, kMassBase);
            std::fill_n(mass_sum.data() + h*p.mass_stride, n_pages, kMassBase);
        }
        p.out      = reinterpret_cast<char *>(out.data());
        p.mass_max = c.observe & 1 ? mass_max.data() : nullptr;
        p.mass_sum = c.observe & 2 ? mass_sum.data() : nullptr;
    }
};

double tolerance_of(const Case & c, const Values & values) {
    const double u = 0x1p-24;
    const double s = values.p.scale*values.q_norm*values.k_norm;     // bounds sum |q_i k_i|
    const double largest_bias = c.mask == Mask::biased ? 8.0 : 0.0;  // where huge ones count, all cells have them
    const double logit = u*(3.5*std::sqrt(13.0)*s + 2*(s + largest_bias + c.softcap) + 8);
    return 2*(2*logit + 3.5*std::sqrt(c.n_cells)*u);
}

constexpr AttendHits kHitsBefore = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0};
constexpr uint32_t kUbatch = 2;

// The same problem in device memory.
struct OnDevice {
    AttendProblem p;
    Memory q, k, v, mask, sinks, out, mass_max, mass_sum, cells, weights, n_rows, slots, arena, hits, n_ubatch;
    std::vector<Memory> ring_data, ring_held;
    std::vector<gpu::Ring> rings;

    OnDevice(const Case & c, const AttendProblem & problem, const Values & values, const Results & results, const Lists * lists,
             const Placed & placed)
        : p(problem), q(values.q), k(placed.k, true), v(placed.v, true), mask(values.mask), sinks(values.sinks), out(results.out),
          mass_max(results.mass_max), mass_sum(results.mass_sum), slots(placed.slots), arena(placed.arena) {
        p.q        = q.as<char>();
        p.k        = k.as<char>();
        p.v        = v.as<char>();
        p.mask     = mask.as<char>();
        p.sinks    = c.sinks ? sinks.as<float>() : nullptr;
        p.out      = out.as<char>();
        p.mass_max = problem.mass_max != nullptr ? mass_max.as<float>() : nullptr;
        p.mass_sum = problem.mass_sum != nullptr ? mass_sum.as<float>() : nullptr;
        if (lists != nullptr) {
            cells   = Memory(lists->cells);
            weights = Memory(lists->weights);
            n_rows  = Memory(lists->n_rows);
            p.rows  = {cells.as<int32_t>(), lists->weighted ? weights.as<float>() : nullptr, n_rows.as<int32_t>(), lists->stride};
            hits    = Memory(std::vector<AttendHits>(static_cast<size_t>(c.n_head_kv), kHitsBefore));
            n_ubatch = Memory(std::vector<uint32_t>{kUbatch});
            p.error_turn = problem.error_turn - static_cast<int>(kUbatch);
            p.hits  = hits.as<AttendHits>();
        }
        p.arena = {c.arena ? arena.as<char>() : nullptr, placed.slot_bytes, placed.v_offset, slots.as<int32_t>(),
                   static_cast<size_t>(c.n_pages())};
        for (const Placed::HostRing & ring : placed.rings) {
            ring_data.emplace_back(ring.data);
            ring_held.emplace_back(ring.held);
            rings.push_back({c.ring ? ring_data.back().as<char>() : nullptr, ring.first_page, ring.end_page, c.n_head_kv,
                             ring_held.back().as<uint8_t>()});
        }
    }

    void reset(const Results & results) {
        out.write(results.out.data());
        mass_max.write(results.mass_max.data());
        mass_sum.write(results.mass_sum.data());
    }
};

void run(const Case & c, const OnDevice & d, int n_splits) {
    const int n_parts = static_cast<int>(d.rings.size());
    const size_t bytes = gpu::attend_device_workspace_bytes(d.p, n_parts*n_splits, c.observe != 0 || d.p.error_every > 0);
    const Memory workspace(std::vector<char>(bytes, static_cast<char>(0xff)));
    for (int i = 0; i < n_parts; ++i) {
        const gpu::Ring & ring = d.rings[static_cast<size_t>(i)];
        const gpu::AttendPart part = {ring.first_page, ring.end_page, i*n_splits, n_splits, ring, false};
        gpu::launch_attend(d.p, part, workspace.as<char>(), n_parts*n_splits, nullptr);
    }
    gpu::launch_attend_merge(d.p, 0, c.n_pages(), workspace.as<char>(), n_parts*n_splits, nullptr);
    gpu::launch_attend_error(d.p, {}, workspace.as<char>(), n_parts*n_splits, d.n_ubatch.as<uint32_t>(), nullptr);
    if (!gpu::stream_sync(nullptr)) {
        std::printf("FAIL: %s\n", gpu::last_error());
        std::exit(1);
    }
}

struct Wanted {
    const Results & results;
    size_t mass_stride;
    const std::vector<AttendHits> & hits;
};

// Hits from the reference's mass: mass_sum has been added up over tokens, as hits are, but lists differ between tokens. So where
// there are several tokens only the sums over all pages are known. Errors are the reference's own.
void check_hits(const Case & c, int n_splits, const OnDevice & d, const Lists & lists, const Placed & placed, const Wanted & want,
                double tolerance) {
    std::vector<AttendHits> hits(static_cast<size_t>(c.n_head_kv));
    d.hits.read(hits);
    for (int h = 0; h < c.n_head_kv; ++h) {
        double n_read = 1.0, n_hits = 2.0, mass = 3.0, mass_hits = 4.0;
        for (int t = 0; t < c.n_tokens; ++t) {
            const size_t list = static_cast<size_t>(t*c.n_head_kv + h);
            n_read += lists.n_rows[list];
            for (int i = 0; i < lists.n_rows[list]; ++i) {
                const size_t page = static_cast<size_t>(lists.cells[list*lists.stride + i]/c.page_tokens);
                n_hits += c.arena && placed.slots[static_cast<size_t>(h*c.n_pages()) + page] >= 0 ? 1 : 0;
            }
        }
        for (int page = 0; page < c.n_pages(); ++page) {
            const double x = want.results.mass_sum[h*want.mass_stride + page] - static_cast<double>(Results::kMassBase);
            mass += x;
            mass_hits += c.arena && placed.slots[static_cast<size_t>(h*c.n_pages() + page)] >= 0 ? x : 0.0;
        }
        const AttendHits & got = hits[static_cast<size_t>(h)];
        const double allowed = tolerance + 0x1p-23*c.n_pages()*c.n_tokens;
        if (got.n_read != n_read) {
            fail(c, n_splits, "n_read", got.n_read, n_read);
        }
        if (got.n_hits != n_hits) {
            fail(c, n_splits, "n_hits", got.n_hits, n_hits);
        }
        if (c.observe & 2 && !(std::fabs(got.mass - mass) <= allowed)) {
            fail(c, n_splits, "mass of the lists", got.mass, mass);
        }
        if (c.observe & 2 && !(std::fabs(got.mass_hits - mass_hits) <= allowed)) {
            fail(c, n_splits, "mass in the arena", got.mass_hits, mass_hits);
        }
        if (c.observe == 0 && (got.mass != 3.0 || got.mass_hits != 4.0)) {
            fail(c, n_splits, "mass that nobody observed", got.mass, 3.0);
        }
        const double error = 5.0 + want.hits[h].error, n_errors = 6.0 + want.hits[h].n_errors;
        if (got.n_errors != n_errors) {
            fail(c, n_splits, "n_errors", got.n_errors, n_errors);
        }
        // an output that is next to nothing beside what it sums up is known less well
        if (!(std::fabs(got.error - error) <= 1e-3*want.hits[h].error + tolerance*want.hits[h].n_errors)) {
            fail(c, n_splits, "error", got.error, error);
        }
        n_errors_all += want.hits[h].n_errors;
    }
}

void check_case(const Case & c, uint64_t seed) {
    const Values values(c, seed);
    const Placed placed(c, values, seed);
    AttendProblem p = values.p;
    std::unique_ptr<Lists> lists;
    if (c.select != Select::all) {
        lists = std::make_unique<Lists>(c, seed);
        p.rows        = lists->use();
        p.error_every = static_cast<int>(seed % 4);
        p.error_turn  = static_cast<int>(kUbatch + seed % 3);
    }
    Results want(c, p, 0.0f);
    std::vector<AttendHits> reference(static_cast<size_t>(c.n_head_kv));
    p.hits = reference.data();
    attend_reference(p);

    const Results empty(c, p, kNan);
    OnDevice d(c, p, values, empty, lists.get(), placed);
    if (!gpu::attend_device_supports(d.p)) {
        return fail(c, 0, "supported", 0, 1);
    }
    const double tolerance = tolerance_of(c, values), mass_tolerance = tolerance*c.group*c.n_tokens;
    const int counts[] = {1, 2, 3, 7, 19};
    for (int variant = 0; variant < 2; ++variant) {
        const int n_splits = counts[(seed + seed/5 + 2*static_cast<uint64_t>(variant)) % 5];
        Results got = empty;
        if (variant > 0) {
            d.reset(empty);
        }
        run(c, d, n_splits);
        d.out.read(got.out);
        d.mass_max.read(got.mass_max);
        d.mass_sum.read(got.mass_sum);
        compare(c, n_splits, "out", got.out, want.out, tolerance*values.v_max);
        compare(c, n_splits, "mass_max", got.mass_max, want.mass_max, mass_tolerance);
        compare(c, n_splits, "mass_sum", got.mass_sum, want.mass_sum, mass_tolerance);
        if (variant == 0 && lists) {
            check_hits(c, n_splits, d, *lists, placed, {want, p.mass_stride, reference}, mass_tolerance);
        }
        for (int h = 0; c.observe == 3 && h < c.n_head_kv; ++h) {
            double total = 0.0;
            for (int i = 0; i < c.n_pages(); ++i) {
                const float top = got.mass_max[h*p.mass_stride + i] - Results::kMassBase;
                const float sum = got.mass_sum[h*p.mass_stride + i] - Results::kMassBase;
                total += sum;
                if (!(top <= sum + 0x1p-20f)) {
                    fail(c, n_splits, "mass_max <= mass_sum", top, sum);
                }
            }
            const double allowed = mass_tolerance + 0x1p-24*c.n_pages()*c.n_tokens*4;
            if (!c.sinks && c.select == Select::all && !(std::fabs(total - values.visible_tokens*c.group) <= allowed)) {
                fail(c, n_splits, "total mass", total, values.visible_tokens*c.group);
            }
        }
        if (variant > 0) {  // once more, in another order of blocks and threads: bit by bit the same
            Results again = empty;
            d.reset(empty);
            run(c, d, n_splits);
            d.out.read(again.out);
            d.mass_sum.read(again.mass_sum);
            if (std::memcmp(again.out.data(), got.out.data(), got.out.size()*4) != 0 ||
                std::memcmp(again.mass_sum.data(), got.mass_sum.data(), got.mass_sum.size()*4) != 0) {
                fail(c, n_splits, "a second run", 0, 0);
            }
        }
    }
}

// Rows that hold infinities and NaN reach nobody who does not see them.
void check_spoilt(const Case & c, uint64_t seed) {
    Values values(c, seed);
    AttendProblem p = values.p;
    Results want(c, p, 0.0f), got = want;
    p.mass_max = p.mass_sum = nullptr;
    p.out = reinterpret_cast<char *>(want.out.data());
    attend_reference(p);
    p.out = reinterpret_cast<char *>(got.out.data());
    const auto attend = [&] {
        const Placed placed(c, values, seed);
        OnDevice d(c, p, values, got, nullptr, placed);
        run(c, d, 3);
        d.out.read(got.out);
    };
    const auto nothing_dropped = [](int, int) { return false; };
    const std::vector<cases::Spoilt> cells = cases::cells_to_spoil(p, seed);
    for (const bool keys : {false, true}) {
        const std::string fault = cases::spoilt_fault({p, values.k.data(), values.v.data(), nothing_dropped, attend, tolerance_of(c, values)*values.v_max}, cells,
                                                      reinterpret_cast<const char *>(want.out.data()), keys);
        if (!fault.empty() && ++failures <= 20) {
            std::printf("FAIL: %s [%s]\n", fault.c_str(), c.name().c_str());
        }
    }
}

// Walks lists of different lengths side by side; `random` decides what the lengths do not decorrelate.
void check_all(int n_each, double work) {
    const int dims[] = {64, 80, 96, 128, 256, 72, 112, 192};
    const int groups[] = {1, 2, 3, 4, 5, 7, 8, 12, 16};
    const int tokens[] = {1, 1, 2, 3, 5, 16};
    const int cells[] = {1, 15, 16, 17, 27, 61, 113, 482, 577, 1110, 1541, 2047, 3330};
    const float softcaps[] = {0.0f, 0.0f, 30.0f, 2.0f};
    const int pages[] = {16, 32, 48};
    cases::Random rng(7);
    uint64_t n = 0;
    for (int dim : dims) {
        for (int types = 0; types < 4; ++types) {
            Case c{};
            c.head_dim = dim;
            c.k_type = types & 1 ? CellType::q8_0 : CellType::f16;
            c.v_type = types & 2 ? CellType::q8_0 : CellType::f16;
            if (types != 0 && dim % 32 != 0) {
                continue;
            }
            for (int i = 0; i < n_each; ++i, ++n) {
                c.group = groups[n % 9];
                c.n_cells = cells[n % 13];
                c.n_tokens = tokens[rng.next() % 6];
                c.mask = static_cast<Mask>(n/2 % static_cast<uint64_t>(Mask::count));
                c.n_head_kv = 1 + static_cast<int>(rng.next() % 3);
                c.page_tokens = pages[rng.next() % 3];
                c.softcap = softcaps[rng.next() % 4];
                c.sinks = rng.next() % 3 == 0;
                c.gaps = rng.next() % 2 == 0;
                c.arena = rng.next() % 4 != 0;
                c.ring = rng.next() % 2 == 0;
                c.select = static_cast<Select>(n % 3);
                c.ring = c.ring && c.select == Select::all;  // rows of lists lie in slots or at home
                c.n_parts = 1 + static_cast<int>(rng.next() % 3);
                c.observe = rng.next() % 2 == 0 ? 3 : static_cast<int>(rng.next() % 4);
                while (1.0*c.group*c.n_head_kv*c.n_tokens*c.n_cells*dim > work && (c.n_head_kv > 1 || c.n_tokens > 1)) {
                    (c.n_head_kv > 1 ? c.n_head_kv : c.n_tokens) -= 1;
                }
                for (int shorter = 12; shorter > 0 && 1.0*c.group*c.n_cells*dim > 4*work; --shorter) {
                    c.n_cells = std::min(c.n_cells, cells[shorter - 1]);
                }
                check_case(c, n);
                if (c.select == Select::all && c.n_tokens > 1) {
                    check_spoilt(c, n);
                }
            }
        }
    }
    std::printf("%llu cases, largest error %.3f of the tolerance; %.0f errors were estimated\n", static_cast<unsigned long long>(n), worst,
                n_errors_all);
    if (n_errors_all < 10) {
        std::printf("FAIL: that is none\n");
        failures += 1;
    }
}

// What the kernels would read wrongly is refused.
void check_supports() {
    const auto expect = [](bool want, const char * what, auto change) {
        AttendProblem p{};
        p.head_dim = 128, p.n_head = 8, p.n_head_kv = 2, p.n_tokens = 1, p.n_cells = 256, p.page_tokens = 16;
        p.q_stride_head = 512, p.q_stride_token = 4096;
        p.k_stride_head = p.v_stride_head = 256, p.k_stride_cell = p.v_stride_cell = 512;
        change(p);
        if (gpu::attend_device_supports(p) != want) {
            ++failures;
            std::printf("FAIL supports: %s\n", what);
        }
    };
    expect(true, "a plain problem", [](AttendProblem &) {});
    expect(true, "groups of 16", [](AttendProblem & p) { p.n_head = 32; });
    expect(false, "groups of 17", [](AttendProblem & p) { p.n_head = 34; });
    expect(false, "heads that do not divide", [](AttendProblem & p) { p.n_head = 7; });
    expect(true, "head_dim 72", [](AttendProblem & p) { p.head_dim = 72; });
    expect(false, "head_dim 88", [](AttendProblem & p) { p.head_dim = 88; });
    expect(false, "head_dim 512", [](AttendProblem & p) { p.head_dim = 512; });
    expect(false, "q8_0 of 80", [](AttendProblem & p) { p.head_dim = 80, p.v_type = CellType::q8_0; });
    expect(false, "f16 rows off 16 bytes", [](AttendProblem & p) { p.k_stride_cell = 520; });
    expect(true, "q8_0 rows off 16 bytes", [](AttendProblem & p) { p.k_type = CellType::q8_0, p.k_stride_head = 138; });
    expect(false, "q8_0 rows at odd bytes", [](AttendProblem & p) { p.v_type = CellType::q8_0, p.v_stride_head = 137; });
    expect(false, "17 tokens", [](AttendProblem & p) { p.n_tokens = 17; });
    expect(false, "pages of 24", [](AttendProblem & p) { p.page_tokens = 24; });
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc == 3 && std::strcmp(argv[1], "--bench") == 0) {
        return bench::attention(std::atoi(argv[2]));
    }
    check_supports();
    if (argc > 1 && std::strcmp(argv[1], "all") == 0) {
        check_all(117, 1e6);
    } else {
        check_all(8, 3e5);
    }
    std::printf(failures == 0 ? "ok\n" : "%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
