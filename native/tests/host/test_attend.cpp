// Checks the attention kernels against attend_reference().
//   test_attend [one case in so many, 9]
//
// Tolerances. Rounding errors are taken as independent and uniform in [-u, u] relative to the result, u = 2^-24, so that a chain
// of n additions with partial sums up to A is off by at most 6 * sqrt(n / 3) * u * A (six standard deviations). A score is a
// chain of head_dim / 8 + 3 with A <= S = scale * |q| * |k|; softcap, bias and shift round it a few times more, at magnitude
// S + |bias| + softcap; the exponential adds 4 u:
//   logit error d = u * (3.5 * sqrt(head_dim / 8 + 3) * S + 2 * (S + |bias| + softcap) + 4)
// A weight is then off by a relative e = 2 * d + 3.5 * sqrt(n_cells) * u (its own logit and the sum), so that an output is off
// by at most 2 * e * max |v| (its own chain has n_cells additions again), and the mass of a page by 2 * e per query. Lists of rows
// are the same, as their weights scale a sum and its terms alike. The estimated error of a row is a root of a sum of squares, each off by
// a relative 4 * e and what |v - o| is off by.
#include <map>
#include <thread>

#include "attend_walk.h"
#include "dense_problem.h"
#include "kernel_names.h"
#include "kernels/decode/attend_internal.h"
#include "spoilt_rows.h"

using namespace edgekv;
using namespace test;

namespace {

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

// Memory for a run: NaN, behind a header of zeros.
struct Workspace {
    std::vector<float> raw;
    size_t n_bytes;
    char * data;

    Workspace(const AttendProblem & p, int n_threads) : raw(attend_workspace_bytes(p, n_threads) / 4 + 64, kNan),
        n_bytes(attend_workspace_bytes(p, n_threads)), data(aligned(raw)) { std::memset(data, 0, kAttendHeaderBytes); }

    void check_left(const AttendRun & by) {
        const bool zero = std::all_of(data, data + kAttendHeaderBytes, [](char x) { return x == 0; });
        expect(zero, by, "the header of the workspace is zero again");
        const float * behind = reinterpret_cast<const float *>(data + n_bytes), * end = raw.data() + raw.size();
        expect(std::all_of(behind, end, [](float x) { return std::isnan(x); }), by, "nothing is written behind the workspace");
    }
};

// The least length of an output that is not zero.
double shortest_output(const AttendCase & c, const AttendProblem & p, const AttendResults & want) {
    double shortest = kInf;
    for (int t = 0; t < c.n_tokens; ++t) {
        for (int h = 0; h < p.n_head; ++h) {
            const float * out = want.out.data() + (t * p.out_stride_token + h * p.out_stride_head) / 4;
            double square = 0.0;
            for (int i = 0; i < c.v_dim(); ++i) {
                square += static_cast<double>(out[i]) * out[i];
            }
            shortest = square > 0.0 ? std::min(shortest, std::sqrt(square)) : shortest;
        }
    }
    return shortest;
}

double tolerance_of(const AttendCase & c, const AttendInstance & instance) {
    const double u = 0x1p-24, s = instance.score;
    const double logit = u * (3.5 * std::sqrt(c.head_dim / 8 + 3) * s + 2 * (s + instance.largest_bias + c.softcap) + 4);
    return 2 * (2 * logit + 3.5 * std::sqrt(c.n_cells) * u);
}

// Copies of two listed rows in three, which hold NaN at home.
struct CopiedRows {
    Bytes k, v;
    std::vector<char> slots;
    std::vector<int32_t> slot_of;  // as the lists' cells

    // `placed`: where pages lie, none of them in an arena
    CopiedRows(const AttendCase & c, AttendProblem & p, const PlacedPages & placed, uint64_t seed) : k(placed.k), v(placed.v) {
        test::Random rng(seed + 311);
        const size_t k_bytes = row_bytes(c.k_type, c.head_dim), v_bytes = c.v_in_k != 0 ? 0 : row_bytes(c.v_type, c.head_dim);
        std::map<std::pair<int, int32_t>, int32_t> taken;  // head and cell
        slot_of.assign(static_cast<size_t>(c.n_tokens) * c.n_head_kv * p.rows.stride, -1);
        for (int list = 0; list < c.n_tokens * c.n_head_kv; ++list) {
            const int head = list % c.n_head_kv;
            for (size_t i = list * p.rows.stride; i < list * p.rows.stride + static_cast<size_t>(p.rows.n_rows[list]); ++i) {
                const int32_t cell = p.rows.cells[i];
                const auto [at, is_new] = taken.try_emplace({head, cell}, static_cast<int32_t>(slots.size() / (k_bytes + v_bytes)));
                if (is_new && rng.one_of(3)) {
                    at->second = -1;
                } else if (is_new) {
                    take(k.data() + cell * p.k_stride_cell + head * p.k_stride_head, k_bytes);
                    take(v_bytes > 0 ? v.data() + cell * p.v_stride_cell + head * p.v_stride_head : nullptr, v_bytes);
                }
                slot_of[i] = at->second;
            }
        }
        p.k = k.data();
        p.v = v.data();
        p.copies = {slots.empty() ? nullptr : slots.data(), k_bytes + v_bytes, k_bytes, slot_of.data()};
    }

private:
    void take(char * from, size_t n) {
        slots.insert(slots.end(), from, from + n);
        std::fill(from, from + n, static_cast<char>(0xff));
    }
};

void check_case(const AttendCase & c, uint64_t seed, const std::vector<const char *> & all_kernels) {
    const AttendTest test(c, seed, static_cast<int>(seed / 4 % 5));
    const AttendInstance & instance = test.instance;
    const AttendResults & want = test.want;
    AttendProblem p = test.p;
    if (test.lists) {
        p.k = test.placed.k.data();
        p.v = test.placed.v.data();
        p.arena = test.placed.in(c, test.placed.arena.data(), test.placed.slots.data());
    }
    std::unique_ptr<CopiedRows> copied;
    if (test.lists && !c.arena) {
        copied = std::make_unique<CopiedRows>(c, p, test.placed, seed);
    }
    const double tolerance = tolerance_of(c, instance), mass_tolerance = tolerance * c.group * c.n_tokens;
    // |v - o| is off by what o is, in channels that err apart from each other, and is divided by |o|
    const double error_tolerance = 2 * tolerance * (1 + instance.v_max / shortest_output(c, p, want)) + 0x1p-22 * std::sqrt(c.n_cells);
    const int thread_counts[] = {1, 2, 3, 5};
    for (const char * kernels : all_kernels) {
        std::unique_ptr<AttendResults> first;
        std::vector<AttendHits> hits, first_hits;
        for (size_t variant = 0; variant < 2; ++variant) {
            const int n_threads = thread_counts[(seed + 2 * variant + seed / 4) % 4];
            const AttendRun by{c, kernels, n_threads};
            Workspace workspace(p, n_threads);
            for (const bool again : {false, true}) {  // with what the first run left in the workspace
                AttendResults got(c, p, kNan);
                hits.assign(static_cast<size_t>(c.n_head_kv), AttendHits{});
                p.hits = test.lists ? hits.data() : nullptr;
                run(kernels, p, workspace.data, n_threads, !again && seed % 2 == 0);
                if (test.lists && first) {
                    expect(same(got.out, first->out) && same(got.mass_max, first->mass_max) && same(got.mass_sum, first->mass_sum) &&
                           same(hits, first_hits), by, "the number of threads changes no bit");
                } else if (test.lists) {
                    first = std::make_unique<AttendResults>(got);
                    first_hits = hits;
                }
                compare(by, again ? "out of a second run" : "out", got.out, want.out, tolerance * instance.v_max);
                compare(by, again ? "mass_max of a second run" : "mass_max", got.mass_max, want.mass_max, mass_tolerance);
                compare(by, again ? "mass_sum of a second run" : "mass_sum", got.mass_sum, want.mass_sum, mass_tolerance);
                if (test.lists) {
                    check_hits(by, *test.lists, test.placed, test.p, hits, {}, {mass_tolerance, error_tolerance, error_tolerance});
                }
                workspace.check_left(by);
            }
        }
    }
}

void check_spoilt(const AttendCase & c, uint64_t seed, const std::vector<const char *> & all_kernels) {
    AttendInstance instance(c, seed);
    AttendProblem p = instance.p;
    AttendResults want(c, p, 0.0f);
    p.mass_max = p.mass_sum = nullptr;
    attend_reference(p);
    const int n_threads = 1 + static_cast<int>(seed % 3);
    for (const char * kernels : all_kernels) {
        Workspace workspace(p, n_threads);
        const auto attend = [&] {
            AttendResults got(c, p, 0.0f);
            p.mass_max = p.mass_sum = nullptr;
            run(kernels, p, workspace.data, n_threads, false);
            return got.out;
        };
        test::check_spoilt({c, kernels, n_threads}, instance, p, seed, want.out, tolerance_of(c, instance) * instance.v_max, attend);
    }
}

void check_all(const std::vector<const char *> & kernels, uint64_t one_in) {
    const AttendWalk walk = {{64, 80, 96, 128, 256, 72, 112, 192, 512}, {1, 2, 3, 4, 5, 7, 8}, {1, 2, 3, 5, 16},
                             {1, 15, 16, 17, 27, 61, 113, 482, 577, 1110, 2047}, 91, 4e5, false,
                             {{576, 512}, {576, 256}, {320, 256}, {160, 128}, {72, 64}}};
    for (int dim : walk.dims) {
        for (int types = 0; types < kTypePairs; ++types) {
            CHECK(attend_supports(dim, k_type_of(types), v_type_of(types)) == (types == 0 || dim % 32 == 0), "head_dim %d, types %d", dim, types);
        }
    }
    for (const auto [dim, v_in_k] : walk.latent) {
        CHECK(attend_supports_shared(dim, v_in_k, CellType::f16), "rows of %d with V of %d", dim, v_in_k);
        for (const CellType type : {CellType::q8_0, CellType::q4_0}) {
            CHECK(attend_supports_shared(dim, v_in_k, type) == (dim % 32 == 0), "type %d, rows of %d with V of %d", static_cast<int>(type), dim, v_in_k);
        }
        CHECK(!attend_supports_shared(dim, dim, CellType::f16) && !attend_supports_shared(dim, 96, CellType::f16), "V of %d", dim);
    }
    const uint64_t n = walk_attend_cases(walk, [&](const AttendCase & c, uint64_t seed) {
        if (seed % one_in != 0) {
            return;
        }
        check_case(c, seed, kernels);
        if (c.select == Select::all) {
            check_spoilt(c, seed, kernels);
        }
    });
    std::printf("%llu cases, largest error %.3f of the tolerance, of an estimated error %.2g\n", static_cast<unsigned long long>(n), worst,
                worst_error);
}

// One visible cell: what comes out is its V, each finite f16 as it is, those below the normal range too.
void check_halves(const std::vector<const char *> & kernels) {
    constexpr int kDim = 64;
    std::vector<uint16_t> k(kDim), v(kDim);
    std::vector<float> q(kDim, 1.0f), out(kDim);
    AttendProblem p = dense_problem(kDim, 1, 1, 1, 1, CellType::f16);
    p.q = reinterpret_cast<const char *>(q.data());
    p.k = reinterpret_cast<const char *>(k.data());
    p.v = reinterpret_cast<const char *>(v.data());
    p.out = reinterpret_cast<char *>(out.data());
    Workspace workspace(p, 1);
    for (const char * name : kernels) {
        for (uint32_t first = 0; first < 0x10000; first += kDim) {
            if ((first & 0x7c00) == 0x7c00) {
                continue;  // infinities and NaN
            }
            for (int i = 0; i < kDim; ++i) {
                v[i] = static_cast<uint16_t>(first + i);
            }
            run(name, p, workspace.data, 1, false);
            for (int i = 0; i < kDim; ++i) {
                CHECK(out[i] == half_to_double(v[i]), "%s: the half %04x became %a", name, v[i], out[i]);
            }
        }
    }
}

}  // namespace

int main(int argc, char ** argv) {
    const std::vector<const char *> kernels = kernel_names(attend_kernels);
    check_all(kernels, one_case_in(argc, argv, 9));
    check_halves(kernels);
    return finish();
}
