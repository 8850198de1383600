// Checks the sketch kernels against SketchReference and the true logits.
//   test_sketch [one case in so many, 4]
//
// A share tells its logit: reading an integer as a float is a logarithm, and the upper half of one leaves steps of ln 2 / 128, downwards.
//
// Tolerances, with s, S, L, fine and coarse as in sketch_reference.cpp, and summed over channels: a key that is off by s + 7 S / 2 + L / 2
// changes a logit by |q| times that; rounding the factors by at most 7 * 0.504 * fine * 2^15 * S; rounding the query by 0.5 * coarse
// times the largest |low|; float arithmetic by 2^-20 of everything. These are worst cases, all errors at once: as they are independent,
// the root of the mean square is checked too, against 0.15 of the root of the sum of squares of |q| * s; and that of the distance to the
// true logits, whose codes round evenly: 0.33, where 1 / sqrt(12) = 0.29 would be codes alone.
#include <memory>

#include "checks.h"
#include "kernel_names.h"
#include "kernels/simd/subnormals.h"
#include "sketch_instance.h"

using namespace edgekv;
using namespace test;

namespace {

constexpr double kLn2 = 0.69314718055994531;
constexpr double kShareStep = kLn2 / 128;  // of a logit
constexpr uint16_t kOne = 0x3f80;

double worst = 0.0;                            // error in units of the worst case
double worst_rms = 0.0, worst_rms_true = 0.0;  // in units of what is allowed

// All heads' shares; what no scan should write is marked.
struct Scanned {
    size_t n_queries, cell_stride, group_stride;
    std::vector<uint16_t> cells;
    std::vector<float> tops, sums;

    explicit Scanned(const SketchCase & c) : n_queries(static_cast<size_t>(c.n_queries())), cell_stride(c.n_groups * kGroupCells + 5),
        group_stride(static_cast<size_t>(c.n_groups) + 3), cells(cell_stride * n_queries * c.n_head_kv, kUntouched),
        tops(group_stride * n_queries * c.n_head_kv, kNan), sums(tops) {}

    Shares of_head(int head) {
        const size_t first = n_queries * head;
        return {cells.data() + first * cell_stride, tops.data() + first * group_stride, sums.data() + first * group_stride, cell_stride, group_stride};
    }
    uint16_t share(int head, int query, int group, int cell) const {
        return cells[(n_queries * head + query) * cell_stride + static_cast<size_t>(group) * kGroupCells + cell];
    }
    size_t at(int head, int query, int group) const { return (n_queries * head + query) * group_stride + group; }
};

// The least logit that a share can stand for; the most is kShareStep above.
double logit_of(uint16_t share, double top) { return top + (share / 128.0 - 127.0) * kLn2; }

// Calls do(head, query, group) for each.
template <class Do>
void for_all(const SketchCase & c, const Do & act) {
    for (int h = 0; h < c.n_head_kv; ++h) {
        for (int query = 0; query < c.n_queries(); ++query) {
            for (int g = 0; g < c.n_groups; ++g) {
                act(h, query, g);
            }
        }
    }
}

void build_all(const By<SketchCase> & by, const SketchInstance & in, const SketchKernels & kernels, const Sketch & sketch, bool backwards) {
    const SketchCase & c = by.c;
    const SketchLayout layout = sketch_layout(c.head_dim, c.n_groups);
    const SketchKeys keys = in.keys(c, 0);
    const int n = c.n_groups * c.n_head_kv;
    for (int i = 0; i < n; ++i) {
        const int j = backwards ? n - 1 - i : i;
        const int group = j / c.n_head_kv, head = j % c.n_head_kv, other = (group + 1) % c.n_groups;
        if (backwards && j % 3 == 0) {  // something else was there before
            kernels.build(sketch, layout, keys, head, other, in.valid[other]);
            kernels.build(sketch, layout, keys, head, group, 0);
        }
        kernels.build(sketch, layout, keys, head, group, in.valid[group]);
    }
    const auto zeros = [](const char * p, size_t n_bytes) { return std::all_of(p, p + n_bytes, [](char x) { return x == 0; }); };
    for (int h = 0; h < c.n_head_kv; ++h) {
        for (int g = 0; g < c.n_groups; ++g) {
            const char * data = sketch.data + h * layout.head_bytes;
            const bool zero = zeros(data + static_cast<size_t>(g) * layout.code_bytes, layout.code_bytes) &&
                              zeros(data + layout.params_offset + static_cast<size_t>(g) * layout.param_bytes, layout.param_bytes);
            expect(in.valid[g] != 0 || zero, by, "an empty group is zeros");
        }
    }
}

// Groups in two pieces.
Scanned scan_all(const By<SketchCase> & by, const SketchInstance & in, const SketchKernels & kernels, const Sketch & sketch) {
    const SubnormalsAreZero fast;  // as sketch.cpp has it
    const SketchCase & c = by.c;
    const SketchLayout layout = sketch_layout(c.head_dim, c.n_groups);
    Scanned out(c);
    const size_t bytes = sketch_query_bytes(c.head_dim, c.n_queries());
    std::vector<char> prepared(bytes + 64, 0x77);
    for (int h = 0; h < c.n_head_kv; ++h) {
        const SketchQuery query = in.query(c, 0, h, 0, c.n_tokens);
        kernels.prepare(c.head_dim, layout.padded, query, prepared.data());
        const int first = c.n_groups / 3;
        kernels.scan(sketch, layout, query, prepared.data(), h, first, c.n_groups - first, out.of_head(h));
        kernels.scan(sketch, layout, query, prepared.data(), h, 0, first, out.of_head(h));
    }
    expect(std::all_of(prepared.begin() + bytes, prepared.end(), [](char x) { return x == 0x77; }), by, "nothing behind the prepared query");
    return out;
}

Scanned scan_keys(const SketchCase & c, const SketchInstance & in, const SketchKernels & kernels) {
    const SubnormalsAreZero fast;
    Scanned out(c);
    for (int h = 0; h < c.n_head_kv; ++h) {
        for (int g = c.n_groups - 1; g >= 0; --g) {
            kernels.scan_keys(in.keys(c, 0), c.head_dim, in.query(c, 0, h, 0, c.n_tokens), h, g, out.of_head(h));
        }
    }
    return out;
}

// Checks the form of the shares, which no logit changes.
void check_form(const By<SketchCase> & by, const SketchInstance & in, const Scanned & got) {
    const SketchCase & c = by.c;
    for_all(c, [&](int h, int query, int g) {
        const uint64_t visible = in.visible(c, 0, g, query);
        const float top = got.tops[got.at(h, query, g)], sum = got.sums[got.at(h, query, g)];
        expect(visible == 0 ? top == -kInf && sum == 0.0f : std::fabs(top) < kInf, by, "top is -inf where nothing is seen, and only there", top, -kInf);
        double total = 0.0;
        uint16_t most = 0;
        for (int cell = 0; cell < kGroupCells; ++cell) {
            const uint16_t share = got.share(h, query, g, cell);
            expect(visible == 0 ? share == kUntouched : visible >> cell & 1 ? share <= kOne : share == 0, by, "a share up to 1, of a hidden cell 0",
                   share, 0);
            most = std::max(most, share);
            total += share < 0x80 ? 0.0 : from_upper_half(share);  // subnormals count as zero
        }
        if (visible != 0) {
            expect_equal(by, "the largest share", most, kOne);
            expect(sum >= total * (1 - 1e-5) && sum <= total * (1 + 0x1p-7), by, "sum of the shares", sum, total);
        }
    });
    for (size_t i = 0; i < got.cells.size(); ++i) {
        expect(i % got.cell_stride < static_cast<size_t>(c.n_groups) * kGroupCells || got.cells[i] == kUntouched, by, "nothing behind the cells");
    }
    for (size_t i = 0; i < got.tops.size(); ++i) {
        expect(i % got.group_stride < static_cast<size_t>(c.n_groups) || (std::isnan(got.tops[i]) && std::isnan(got.sums[i])), by,
               "nothing behind the groups");
    }
}

// Every instruction set computes the same integers from the same bytes; only the last float operations may round differently.
void check_same(const By<SketchCase> & by, const SketchInstance & in, const Scanned & got, const Scanned & first, double tolerance) {
    const SketchCase & c = by.c;
    for_all(c, [&](int h, int query, int g) {
        if (in.visible(c, 0, g, query) == 0) {
            return;
        }
        const size_t at = got.at(h, query, g);
        expect_near(by, "top, and the first instruction set's", got.tops[at], first.tops[at], tolerance);
        expect_near(by, "sum, and the first instruction set's", got.sums[at], first.sums[at], (1e-5 + 2 * tolerance) * first.sums[at]);
        for (int cell = 0; cell < kGroupCells; ++cell) {
            const double a = logit_of(got.share(h, query, g, cell), 0.0), b = logit_of(first.share(h, query, g, cell), 0.0);
            expect_near(by, "share, and the first instruction set's", a, b, kShareStep * 1.01 + 2 * tolerance);
        }
    });
}

// A logit within `tolerance` of what the share says; returns its distance from the middle of that.
double check_logit(const By<SketchCase> & by, const char * what, uint16_t share, double top, double want, double tolerance) {
    const double least = logit_of(share, top), most = least + kShareStep;
    const double outside = want > most ? want - most : share != 0 && want < least ? least - want : 0.0;  // 0 stands for everything far below
    expect(outside <= tolerance, by, what, least, want);
    worst = std::max(worst, outside / tolerance);
    return share == 0 ? 0.0 : (least + most) / 2 - want;
}

double true_logit(const SketchCase & c, const char * key, const float * q, double & total) {
    double logit = 0.0;
    total = 0.0;
    for (int i = 0; i < c.head_dim; ++i) {
        const double x = static_cast<double>(q[i]) * c.scale * channel(c.type, key, i);
        logit += x;
        total += std::fabs(x);
    }
    return c.softcap != 0.0f ? c.softcap * std::tanh(logit / c.softcap) : logit;
}

// The keys themselves: chains of head_dim / kLanes fused operations, a sum over lanes, and what shares round.
void check_keys(const By<SketchCase> & by, const SketchInstance & in, const Scanned & got) {
    const SketchCase & c = by.c;
    for_all(c, [&](int h, int query, int g) {
        for (int cell = 0; cell < kGroupCells; ++cell) {
            if (in.visible(c, 0, g, query) >> cell & 1) {
                double total;
                const double want = true_logit(c, in.key(0, h, g, cell), in.query_row(c, 0, h, query), total);
                const double tolerance = 1e-5 + 0x1p-20 * (total + std::fabs(want)) + c.softcap * 0x1p-16;
                check_logit(by, "logit from keys", got.share(h, query, g, cell), got.tops[got.at(h, query, g)], want, tolerance);
            }
        }
    });
}

void check_sketches(const By<SketchCase> & by, const SketchInstance & in, const Scanned & got) {
    const SketchCase & c = by.c;
    double square = 0.0, square_true = 0.0, expected = 0.0;
    for (int h = 0; h < c.n_head_kv; ++h) {
        for (int g = 0; g < c.n_groups; ++g) {
            if (in.valid[g] == 0) {
                continue;
            }
            const SketchSpans spans(c, in, 0, h, g);
            const SketchReference reference(in.keys(c, 0), c.head_dim, h, g, in.valid[g]);
            for (int query = 0; query < c.n_queries(); ++query) {
                const float * q = in.query_row(c, 0, h, query);
                double variance, ignored;
                const double tolerance = spans.tolerance(c, q, &variance) + 1e-5;
                for (int cell = (g + query) % 9; cell < kGroupCells; cell += 9) {
                    if (!(in.visible(c, 0, g, query) >> cell & 1)) {
                        continue;
                    }
                    const double want = reference.logit(cell, q, c.scale, c.softcap);
                    const double error = check_logit(by, "logit", got.share(h, query, g, cell), got.tops[got.at(h, query, g)], want, tolerance);
                    square += error * error;
                    square_true += std::pow(want + error - true_logit(c, in.key(0, h, g, cell), q, ignored), 2);
                    expected += variance;
                }
            }
        }
    }
    if (c.data == KeyData::normal && c.softcap == 0.0f && c.n_groups >= 3 && !c.partial && expected > 0.0) {
        expect_near(by, "root mean square error", std::sqrt(square / expected), 0.0, 0.15, &worst_rms);
        expect_near(by, "the same, from the true logits", std::sqrt(square_true / expected), 0.0, 0.33, &worst_rms_true);
    }
}

void check_case(const SketchCase & c, uint64_t seed, const std::vector<const char *> & all_kernels) {
    const SketchInstance in(c, seed);
    const size_t bytes = sketch_bytes(c.head_dim, c.n_head_kv, c.n_groups);
    std::vector<char> first;
    std::unique_ptr<Scanned> first_scan;
    // only the soft cap takes logits whose last bits differ
    const double tolerance = (c.softcap != 0.0f ? c.softcap * 0x1p-20 + in.largest_logit * 0x1p-22 : 0.0) + 1e-7;
    for (const char * name : all_kernels) {
        const By by{c, name};
        const SketchKernels & kernels = *sketch_kernels(name);
        Bytes built[2];  // the bytes between the heads are nobody's; they end on a 64-byte border, and with a page
        for (const bool backwards : {false, true}) {
            built[backwards].resize((bytes + 63) / 64 * 64);
            build_all(by, in, kernels, {c.head_dim, c.n_head_kv, c.n_groups, built[backwards].data()}, backwards);
        }
        expect(built[0] == built[1], by, "the order of building changes no byte");
        const Sketch sketch{c.head_dim, c.n_head_kv, c.n_groups, built[0].data()};
        Scanned scanned = scan_all(by, in, kernels, sketch), exact = scan_keys(c, in, kernels);
        check_form(by, in, scanned);
        check_form(by, in, exact);
        check_keys(by, in, exact);
        if (first_scan == nullptr) {
            check_sketches(by, in, scanned);
            first.assign(built[0].begin(), built[0].end());
            first_scan = std::make_unique<Scanned>(std::move(scanned));
            continue;
        }
        expect(std::equal(first.begin(), first.end(), built[0].begin()), by, "the same bytes as the first instruction set's");
        check_same(by, in, scanned, *first_scan, tolerance);
    }
}

void check_all(const std::vector<const char *> & kernels, uint64_t one_in) {
    const int dims[] = {64, 80, 96, 128, 256, 72, 112, 192, 512};
    const int compressed[] = {160, 320, 576};
    const int groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const int counts[] = {1, 2, 3, 4, 7};
    const float softcaps[] = {0.0f, 0.0f, 0.0f, 30.0f, 2.0f};
    Random rng(11);
    uint64_t n = 0;
    std::vector<int> all(std::begin(dims), std::end(dims));
    all.insert(all.end(), std::begin(compressed), std::end(compressed));
    const auto check_rows = [&](int dim, CellType type) {
        if (!holds_row(type, dim)) {
            return;
        }
        for (int i = 0; i < 45; ++i, ++n) {
            SketchCase c{};
            c.head_dim = dim;
            c.type = type;
            c.n_groups = i % 15 == 9 ? 18 : counts[i % 5];
            c.group = groups[(i + i / 5) % 9];
            c.data = static_cast<KeyData>((i + i / 8) % static_cast<int>(KeyData::subnormal));
            c.data = i % 2 == 0 ? c.data : c.data == KeyData::tiny ? KeyData::subnormal : c.data == KeyData::zero ? KeyData::negative_zero
                     : c.data == KeyData::constant ? KeyData::far_apart : c.data;
            // what a query with an outlier adds is compared with the worst case only: by rounding it grows with the channels, and of four-bit
            // keys, which are a few numbers in a channel, the one channel's error has no even spread
            c.level = c.data == KeyData::normal && (type == CellType::q4_0 || std::find(std::begin(compressed), std::end(compressed), dim) != std::end(compressed));
            c.n_streams = 1;
            c.n_head_kv = 1 + rng.below(2);
            c.n_tokens = c.group > 4 ? 1 : 1 + rng.below(3);
            c.scale = (rng.one_of(5) ? -1.0f : 1.0f) / std::sqrt(static_cast<float>(dim));
            c.softcap = rng.pick(softcaps);
            c.partial = c.partly_seen = rng.one_of(2);
            if (n % one_in == 0) {
                check_case(c, n, kernels);
            }
        }
    };
    for (int dim : all) {
        check_rows(dim, CellType::f16);
        check_rows(dim, CellType::q8_0);
    }
    for (int dim : all) {
        check_rows(dim, CellType::q4_0);
    }
    std::printf("%llu cases, largest error %.3f of the worst case, rms %.3f, from the true logits %.3f, of |q| step\n",
                static_cast<unsigned long long>(n), worst, worst_rms * 0.15, worst_rms_true * 0.33);
}

}  // namespace

int main(int argc, char ** argv) {
    check_all(kernel_names(sketch_kernels), one_case_in(argc, argv, 4));  // the portable bytes and shares are what the others must agree with
    return finish();
}
