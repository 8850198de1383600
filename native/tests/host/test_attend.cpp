// Checks the attention kernels against attend_reference().
//   test_attend [portable|avx2|avx512|avx512vnni]
//
// Tolerances. Rounding errors are taken as independent and uniform in [-u, u] relative to the result, u = 2^-24, so that a chain
// of n additions with partial sums up to A is off by at most 6 * sqrt(n / 3) * u * A (six standard deviations). A score is a
// chain of head_dim / 8 + 3 with A <= S = scale * |q| * |k|; softcap, bias and shift round it a few times more, at magnitude
// S + |bias| + softcap; the exponential adds 4 u:
//   logit error d = u * (3.5 * sqrt(head_dim / 8 + 3) * S + 2 * (S + |bias| + softcap) + 4)
// A weight is then off by a relative e = 2 * d + 3.5 * sqrt(n_cells) * u (its own logit and the sum), so that an output is off
// by at most 2 * e * max |v| (its own chain has n_cells additions again), and the mass of a page by 2 * e per query row. Lists of rows
// are the same, as their weights scale a sum and its terms alike. The estimated error of a row is a root of a sum of squares, each off by
// a relative 4 * e and what |v - o| is off by.
#include <memory>

#include "attend_results.h"
#include "spoilt_rows.h"

using namespace edgekv;

namespace {

void check_case(const Case & c, uint64_t seed, const std::vector<const char *> & all_kernels) {
    Instance instance(c, seed);
    AttendProblem p = instance.p;
    std::unique_ptr<Lists> lists;
    if (c.select != 0) {
        lists = std::make_unique<Lists>(c, instance, p, seed);
        p.hits = lists->want_hits.data();
    }
    Results want(c, p, 0.0f);
    attend_reference(p);
    if (lists) {
        lists->use(p);
    }

    const int pages = (c.n_cells + c.page_tokens - 1) / c.page_tokens;
    const double mass_tolerance = instance.tolerance * c.group * c.n_tokens;
    // |v - o| is off by what o is, in channels that err apart from each other, and is divided by |o|
    const double error_tolerance =
        2 * instance.tolerance * (1 + instance.v_max / shortest_output(c, p, want)) + 0x1p-22 * std::sqrt(c.n_cells);
    const int thread_counts[] = {1, 2, 3, 5};
    for (const char * kernels : all_kernels) {
        std::unique_ptr<Bits> first;
        for (size_t variant = 0; variant < 2; ++variant) {
            const int n_threads = thread_counts[(seed + 2 * variant + seed / 4) % 4];
            const Made by{c, kernels, n_threads};
            Results got(c, p, kNan);
            const size_t bytes = attend_workspace_bytes(p, n_threads);
            std::vector<float> raw(bytes / 4 + 64, kNan);
            char * workspace = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(raw.data()) + 63) / 64 * 64);
            std::memset(workspace, 0, kAttendHeaderBytes);
            const auto attend = [&](bool threads, const Results & into) {
                if (lists) {
                    std::fill(lists->hits.begin(), lists->hits.end(), AttendHits{});
                }
                run(kernels, p, workspace, n_threads, threads);
                if (lists) {
                    Bits bits{into.out, into.mass_max, into.mass_sum, lists->hits};
                    if (first && !(bits == *first)) {
                        fail(by, "the number of threads changes the bits", n_threads, 0);
                    }
                    first = std::make_unique<Bits>(std::move(bits));
                }
            };
            attend(seed % 2 == 0, got);
            if (lists) {
                check_hits(by, *lists, want, p, mass_tolerance, error_tolerance);
            }

            compare(by, "out", got.out, want.out, instance.tolerance * instance.v_max);
            compare(by, "mass_max", got.mass_max, want.mass_max, mass_tolerance);
            compare(by, "mass_sum", got.mass_sum, want.mass_sum, mass_tolerance);
            for (int h = 0; c.observe == 3 && h < c.n_head_kv; ++h) {
                double total = 0.0;
                for (int i = 0; i < pages; ++i) {
                    const float top = got.mass_max[h * p.mass_stride + i] - Results::kMassBase;
                    const float sum = got.mass_sum[h * p.mass_stride + i] - Results::kMassBase;
                    total += sum;
                    if (!(top <= sum + 0x1p-20f)) {
                        fail(by, "mass_max <= mass_sum", top, sum);
                    }
                }
                // base + mass is rounded to 2^-24 per page, token and array
                const double allowed = mass_tolerance + 0x1p-24 * pages * c.n_tokens * 4;
                const int n_outputs = c.group * (lists ? lists->n_listed[static_cast<size_t>(h)] : instance.visible_rows);
                if (!c.sinks && !(std::fabs(total - n_outputs) <= allowed)) {
                    fail(by, "total mass", total, n_outputs);
                }
            }
            for (size_t i = 0; i < kAttendHeaderBytes; ++i) {
                if (workspace[i] != 0) {
                    return fail(by, "workspace header left zero", workspace[i], 0);
                }
            }
            for (float * x = reinterpret_cast<float *>(workspace + bytes); x < raw.data() + raw.size(); ++x) {
                if (!std::isnan(*x)) {
                    return fail(by, "write past the workspace", *x, kNan);
                }
            }
            Results again(c, p, kNan);  // with what the first run left in the workspace
            attend(false, again);
            compare(by, "out of a second run", again.out, want.out, instance.tolerance * instance.v_max);
            compare(by, "mass_sum of a second run", again.mass_sum, want.mass_sum, mass_tolerance);
        }
    }
}

// Rows that hold infinities and NaN reach nobody who does not see them.
void check_spoilt(const Case & c, uint64_t seed, const std::vector<const char *> & all_kernels) {
    Instance instance(c, seed);
    AttendProblem p = instance.p;
    Results want(c, p, 0.0f), got(c, p, 0.0f);
    p.out = reinterpret_cast<char *>(want.out.data());
    p.mass_max = p.mass_sum = nullptr;
    attend_reference(p);
    p.out = reinterpret_cast<char *>(got.out.data());
    const std::vector<cases::Spoilt> cells = cases::cells_to_spoil(p, seed);
    const int n_threads = 1 + static_cast<int>(seed % 3);
    for (const char * kernels : all_kernels) {
        std::vector<float> raw(attend_workspace_bytes(p, n_threads) / 4 + 64);
        char * workspace = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(raw.data()) + 63) / 64 * 64);
        const auto attend = [&] { run(kernels, p, workspace, n_threads, false); };
        const auto nothing_dropped = [](int, int) { return false; };
        for (const bool keys : {false, true}) {
            const std::string fault = cases::spoilt_fault({p, instance.k.data(), instance.v.data(), nothing_dropped, attend, instance.tolerance * instance.v_max},
                                                          cells, reinterpret_cast<const char *>(want.out.data()), keys);
            if (!fault.empty() && ++failures <= 20) {
                std::printf("FAIL %s: %s [%s]\n", kernels, fault.c_str(), c.name().c_str());
            }
        }
    }
}

// Walks lists of different lengths side by side; `random` decides what the lengths do not decorrelate.
void check_all(const std::vector<const char *> & kernels) {
    const int dims[] = {64, 80, 96, 128, 256, 72, 112, 192, 512};
    const int groups[] = {1, 2, 3, 4, 5, 7, 8};
    const int tokens[] = {1, 2, 3, 5, 16};
    const int cells[] = {1, 15, 16, 17, 27, 61, 113, 482, 577, 1110, 2047};
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
            const bool served = types == 0 || dim % 32 == 0;
            if (attend_supports(dim, c.k_type, c.v_type) != served) {
                std::printf("attend_supports() of %s is not %d\n", c.name().c_str(), served);
                failures += 1;
            }
            if (!served) {
                continue;
            }
            for (int i = 0; i < 77; ++i, ++n) {
                c.group = groups[i % 7];
                c.n_cells = cells[i % 11];
                c.n_tokens = tokens[rng.next() % 5];
                c.mask = static_cast<Mask>(n % static_cast<uint64_t>(Mask::count));
                c.n_head_kv = 1 + static_cast<int>(rng.next() % 3);
                c.page_tokens = pages[rng.next() % 3];
                c.softcap = softcaps[rng.next() % 4];
                c.sinks = rng.next() % 3 == 0;
                c.gaps = rng.next() % 2 == 0;
                c.low = rng.next() % 4 == 0;
                c.select = static_cast<int>(n / 2 % 5) % 4;
                c.observe = rng.next() % 2 == 0 ? 3 : static_cast<int>(rng.next() % 4);
                // the reference is slow: bound its work
                while (static_cast<double>(c.group) * c.n_head_kv * c.n_tokens * c.n_cells * dim > 4e5 &&
                       (c.n_head_kv > 1 || c.n_tokens > 1)) {
                    (c.n_head_kv > 1 ? c.n_head_kv : c.n_tokens) -= 1;
                }
                check_case(c, n, kernels);
                if (c.select == 0) {
                    check_spoilt(c, n, kernels);
                }
            }
        }
    }
    std::printf("%llu cases, largest error %.3f of the tolerance, of an estimated error %.2g\n", static_cast<unsigned long long>(n), worst,
                worst_error);
}

// One workspace serves runs of all kinds in turn, as layers and modes take turns.
void check_turns(const std::vector<const char *> & kernels) {
    const Case every{64, 2, 1, 1, 577, 16, CellType::f16, CellType::f16, Mask::none, 0.0f, false, false, false, 3, 0};
    Case lists = every;
    lists.n_head_kv = 3;
    lists.select = 1;
    Instance of_every(every, 1), of_lists(lists, 3);
    AttendProblem p[2] = {of_every.p, of_lists.p};
    Lists rows(lists, of_lists, p[1], 3);
    Results want_every(every, p[0], 0.0f);
    attend_reference(p[0]);
    Results want_lists(lists, p[1], 0.0f);
    attend_reference(p[1]);
    rows.use(p[1]);
    for (const char * name : kernels) {
        const size_t bytes = std::max(attend_workspace_bytes(p[0], 2), attend_workspace_bytes(p[1], 2));
        std::vector<float> raw(bytes / 4 + 16, kNan);
        char * workspace = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(raw.data()) + 63) / 64 * 64);
        std::memset(workspace, 0, kAttendHeaderBytes);
        for (int turn = 0; turn < 3; ++turn) {
            Results got_every(every, p[0], kNan);
            run(name, p[0], workspace, 2, false);
            compare({every, name, 2}, "out, in turns", got_every.out, want_every.out, of_every.tolerance * of_every.v_max);
            Results got_lists(lists, p[1], kNan);
            run(name, p[1], workspace, 2, false);
            compare({lists, name, 2}, "out, in turns", got_lists.out, want_lists.out, of_lists.tolerance * of_lists.v_max);
        }
    }
}

// One visible cell: what comes out is its V, each finite f16 as it is, those below the normal range too.
void check_halves(const std::vector<const char *> & kernels) {
    constexpr int kDim = 64;
    std::vector<uint16_t> k(kDim), v(kDim);
    std::vector<float> q(kDim, 1.0f), out(kDim);
    AttendProblem p{};
    p.head_dim = kDim;
    p.n_head = p.n_head_kv = p.n_tokens = p.n_cells = 1;
    p.page_tokens = 16;
    p.q = reinterpret_cast<const char *>(q.data());
    p.k_type = p.v_type = CellType::f16;
    p.k = reinterpret_cast<const char *>(k.data());
    p.v = reinterpret_cast<const char *>(v.data());
    p.k_stride_cell = p.k_stride_head = p.v_stride_cell = p.v_stride_head = kDim * 2;
    p.scale = 1.0f;
    p.out = reinterpret_cast<char *>(out.data());
    std::vector<float> raw(attend_workspace_bytes(p, 1) / 4 + 16);
    char * workspace = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(raw.data()) + 63) / 64 * 64);
    for (const char * name : kernels) {
        for (uint32_t first = 0; first < 0x10000; first += kDim) {
            if ((first & 0x7c00) == 0x7c00) {
                continue;  // infinities and NaN
            }
            for (int i = 0; i < kDim; ++i) {
                v[i] = static_cast<uint16_t>(first + i);
            }
            run(name, p, workspace, 1, false);
            for (int i = 0; i < kDim; ++i) {
                const int exponent = v[i] >> 10 & 0x1f, fraction = v[i] & 0x3ff;
                const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                                 : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
                if (out[i] != (v[i] & 0x8000 ? -size : size)) {
                    std::printf("%s: the half %04x became %a\n", name, v[i], out[i]);
                    failures += 1;
                    return;
                }
            }
        }
    }
}

// A kernel computes without subnormal floats, and leaves the thread as it was.
void check_thread(const std::vector<const char *> & kernels) {
    volatile float least = std::numeric_limits<float>::denorm_min();
    for (size_t i = 0; i <= kernels.size(); ++i) {
        if (!(least * 2.0f > 0.0f)) {
            std::printf("subnormal floats are zero on this thread after a run\n");
            failures += 1;
            return;
        }
        if (i < kernels.size()) {
            check_halves({kernels[i]});
        }
    }
}

}  // namespace

int main(int argc, char ** argv) {
    std::vector<const char *> kernels;
    for (const char * name : {"portable", "avx2", "avx512", "avx512vnni"}) {
        if ((argc < 2 || std::strcmp(argv[1], name) == 0) && attend_kernels(name) != nullptr) {
            kernels.push_back(name);
        }
    }
    if (kernels.empty()) {
        std::printf("no such kernels on this machine\n");
        return 77;
    }
    for (const char * name : kernels) {
        std::printf("%s ", name);
    }
    std::printf("(attend_run: %s)\n", isa_name(isa_best()));
    check_all(kernels);
    check_turns(kernels);
    check_thread(kernels);
    std::printf(failures == 0 ? "ok\n" : "%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
