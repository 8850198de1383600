// Checks the sketch kernels against sketch_reference() and the true logits.
//   test_sketch [portable|avx2|avx512|avx512vnni]
//
// A share tells its logit: reading an integer as a float is a logarithm, and the upper half of one leaves steps of ln 2 / 128, downwards.
//
// Tolerances, with s, S, L, fine and coarse as in sketch_reference.cpp, and summed over channels: a key that is off by s + 7 S / 2 + L / 2
// changes a logit by |q| times that; rounding the factors by at most 7 * 0.504 * fine * 2^15 * S; rounding the query by 0.5 * coarse
// times the largest |low|; float arithmetic by 2^-20 of everything. These are worst cases, all errors at once: as they are independent,
// the root of the mean square is checked too, against 0.15 of the root of the sum of squares of |q| * s; and that of the distance to the
// true logits, whose codes round evenly: 0.33, where 1 / sqrt(12) = 0.29 would be codes alone.
#include <algorithm>
#include <memory>

#include "kernels/simd/subnormals.h"
#include "sketch_instance.h"

using namespace edgekv;

namespace {

// What holds whatever the logits are.
void check_form(const Case & c, const Instance & in, const char * name, const Scanned & got) {
    for (int h = 0; h < c.n_head_kv; ++h) {
        for (int row = 0; row < c.n_tokens * c.group; ++row) {
            for (int g = 0; g < c.n_groups; ++g) {
                const uint64_t visible = in.visible(row, g, c);
                const float top = got.tops[got.at(h, row, g)], sum = got.sums[got.at(h, row, g)];
                if (visible == 0 ? top != -kInf || sum != 0.0f : !(std::fabs(top) < kInf)) {
                    fail(c, name, "top is -inf where nothing is seen, and only there", top, -kInf);
                }
                double total = 0.0;
                uint16_t most = 0;
                for (int cell = 0; cell < kGroupCells; ++cell) {
                    const uint16_t share = got.share(h, row, g, cell);
                    if (visible == 0 ? share != kUntouched : visible >> cell & 1 ? share > kOne : share != 0) {
                        return fail(c, name, "share of a hidden cell, or above 1", share, 0);
                    }
                    most = std::max(most, share);
                    total += value_of(share);
                }
                if (visible != 0 && (most != kOne || !(sum >= total * (1 - 1e-5) && sum <= total * (1 + 0x1p-7)))) {
                    fail(c, name, "sum of the shares", sum, total);
                }
            }
            for (size_t i = static_cast<size_t>(c.n_groups) * kGroupCells; i < got.cell_stride; ++i) {
                if (got.cells[(got.n_rows * h + row) * got.cell_stride + i] != kUntouched) {
                    fail(c, name, "write past the cells", i, 0);
                }
            }
            for (size_t i = static_cast<size_t>(c.n_groups); i < got.group_stride; ++i) {
                if (!std::isnan(got.tops[got.at(h, row, 0) + i]) || !std::isnan(got.sums[got.at(h, row, 0) + i])) {
                    fail(c, name, "write past the groups", i, 0);
                }
            }
        }
    }
}

// Every instruction set computes the same integers from the same bytes; only the last float operations may round differently.
void check_same(const Case & c, const Instance & in, const char * name, const Scanned & got, const Scanned & first, double tolerance) {
    for (int h = 0; h < c.n_head_kv; ++h) {
        for (int row = 0; row < c.n_tokens * c.group; ++row) {
            for (int g = 0; g < c.n_groups; ++g) {
                if (in.visible(row, g, c) == 0) {
                    continue;
                }
                const size_t at = got.at(h, row, g);
                if (!(std::fabs(got.tops[at] - first.tops[at]) <= tolerance)) {
                    return fail(c, name, "top differs from the first instruction set's", got.tops[at], first.tops[at]);
                }
                if (!(std::fabs(got.sums[at] - first.sums[at]) <= 1e-5 * first.sums[at] + tolerance * first.sums[at] * 2)) {
                    return fail(c, name, "sum differs from the first instruction set's", got.sums[at], first.sums[at]);
                }
                for (int cell = 0; cell < kGroupCells; ++cell) {
                    const double a = logit_of(got.share(h, row, g, cell), 0.0), b = logit_of(first.share(h, row, g, cell), 0.0);
                    if (!(std::fabs(a - b) <= kShareStep * 1.01 + 2 * tolerance)) {
                        return fail(c, name, "share differs from the first instruction set's", a, b);
                    }
                }
            }
        }
    }
}

// A logit within `tolerance` of what the share says; returns its distance from the middle of that.
double check_logit(const Case & c, const char * name, const char * what, uint16_t share, double top, double want, double tolerance) {
    const double least = logit_of(share, top), most = least + kShareStep;
    const bool below = share == 0 ? true : want >= least - tolerance;  // 0 stands for everything far below
    if (!below || !(want <= most + tolerance)) {
        fail(c, name, what, least, want);
    }
    const double outside = want > most ? want - most : share != 0 && want < least ? least - want : 0.0;
    worst = std::max(worst, outside / tolerance);
    return share == 0 ? 0.0 : (least + most) / 2 - want;
}

double true_logit(const Case & c, const Instance & in, int head, int group, int cell, const std::vector<float> & q, double & total) {
    double logit = 0.0;
    total = 0.0;
    for (int i = 0; i < c.head_dim; ++i) {
        const double x = static_cast<double>(q[i]) * c.scale * cases::element(c.type, in.key(head, group, cell), i);
        logit += x;
        total += std::fabs(x);
    }
    return c.softcap != 0.0f ? c.softcap * std::tanh(logit / c.softcap) : logit;
}

// The keys themselves: chains of head_dim / kLanes fused operations, a sum over lanes, and what shares round.
void check_keys(const Case & c, const Instance & in, const char * name, const Scanned & got) {
    for (int h = 0; h < c.n_head_kv; ++h) {
        for (int row = 0; row < c.n_tokens * c.group; ++row) {
            const std::vector<float> q = in.query_row(c, row);
            for (int g = 0; g < c.n_groups; ++g) {
                for (int cell = 0; cell < kGroupCells; ++cell) {
                    if (in.visible(row, g, c) >> cell & 1) {
                        double total;
                        const double want = true_logit(c, in, h, g, cell, q, total);
                        const double tolerance = 1e-5 + 0x1p-20 * (total + std::fabs(want)) + c.softcap * 0x1p-16;
                        check_logit(c, name, "logit from keys", got.share(h, row, g, cell), got.tops[got.at(h, row, g)], want, tolerance);
                    }
                }
            }
        }
    }
}

void check_sketches(const Case & c, const Instance & in, const char * name, const Scanned & got) {
    double square = 0.0, square_true = 0.0, expected = 0.0;
    for (int h = 0; h < c.n_head_kv; ++h) {
        for (int g = 0; g < c.n_groups; ++g) {
            if (in.valid[g] == 0) {
                continue;
            }
            const Spans spans(c, in, h, g);
            for (int row = 0; row < c.n_tokens * c.group; ++row) {
                const std::vector<float> q = in.query_row(c, row);
                double amax = 0.0, tolerance = 0.0, total = 0.0, variance = 0.0;
                for (float x : q) {
                    amax = std::fmax(amax, std::fabs(static_cast<double>(x) * c.scale));
                }
                const double fine = amax / kFineMax, coarse = amax / kCoarseMax;
                for (int i = 0; i < c.head_dim; ++i) {
                    const double x = std::fabs(static_cast<double>(q[i]) * c.scale);
                    tolerance += x * (spans.step[i] + 3.5 * spans.step_scale + spans.low_scale / 2);
                    tolerance += 7 * 0.504 * fine * 32768 * spans.step_scale;
                    tolerance += coarse * 0.501 * (std::fabs(spans.low[i]) + spans.low_scale);
                    variance += std::pow(x * spans.step[i], 2);
                    total += x * (std::fabs(spans.low[i]) + 7 * spans.step[i]);
                }
                tolerance += 1e-5 + 0x1p-20 * total + c.softcap * 0x1p-16;
                for (int cell = (g + row) % 9; cell < kGroupCells; cell += 9) {  // the reference is slow
                    if (!(in.visible(row, g, c) >> cell & 1)) {
                        continue;
                    }
                    const double want = sketch_reference(in.keys, c.head_dim, h, g * kGroupCells + cell, in.valid[g], q.data(), c.scale, c.softcap);
                    const uint16_t share = got.share(h, row, g, cell);
                    const double top = got.tops[got.at(h, row, g)];
                    double ignored;
                    const double error = check_logit(c, name, "logit", share, top, want, tolerance);
                    square += error * error;
                    square_true += std::pow(want + error - true_logit(c, in, h, g, cell, q, ignored), 2);
                    expected += variance;
                }
            }
        }
    }
    if (c.data == Data::normal && c.softcap == 0.0f && c.n_groups >= 3 && !c.partial && expected > 0.0) {
        const double rms = std::sqrt(square / expected), rms_true = std::sqrt(square_true / expected);
        worst_rms = std::max(worst_rms, rms);
        worst_rms_true = std::max(worst_rms_true, rms_true);
        if (rms > 0.15 || rms_true > 0.33) {
            fail(c, name, "root mean square error", rms, rms_true);
        }
    }
}

void check_case(const Case & c, uint64_t seed, const std::vector<const char *> & all_kernels) {
    const Instance in(c, seed);
    const size_t bytes = sketch_bytes(SketchKind::b3, c.head_dim, c.n_head_kv, c.n_groups);
    Aligned first(bytes);
    std::unique_ptr<Scanned> first_scan, first_keys;
    // only the soft cap takes logits whose last bits differ
    const double tolerance = (c.softcap != 0.0f ? c.softcap * 0x1p-20 + in.largest_logit * 0x1p-22 : 0.0) + 1e-7;
    for (size_t n = 0; n < all_kernels.size(); ++n) {
        const char * name = all_kernels[n];
        const SketchKernels & kernels = *sketch_kernels(name);
        Aligned data(bytes), again(bytes);
        // the bytes between the heads are nobody's
        std::memset(data.bytes.get(), 0, bytes);
        std::memset(again.bytes.get(), 0, bytes);
        const Sketch sketch{SketchKind::b3, c.head_dim, c.n_head_kv, c.n_groups, data.bytes.get()};
        build_all(c, in, kernels, sketch, false);
        build_all(c, in, kernels, {SketchKind::b3, c.head_dim, c.n_head_kv, c.n_groups, again.bytes.get()}, true);
        if (std::memcmp(data.bytes.get(), again.bytes.get(), bytes) != 0) {
            fail(c, name, "bytes depend on the order of building", 0, 0);
        }
        Scanned scanned = scan_all(c, in, kernels, sketch), exact = scan_keys(c, in, kernels);
        check_form(c, in, name, scanned);
        check_form(c, in, name, exact);
        check_keys(c, in, name, exact);
        if (n == 0) {
            check_sketches(c, in, name, scanned);
            std::memcpy(first.bytes.get(), data.bytes.get(), bytes);
            first_scan = std::make_unique<Scanned>(std::move(scanned));
            continue;
        }
        if (std::memcmp(data.bytes.get(), first.bytes.get(), bytes) != 0) {
            fail(c, name, "bytes differ from the first instruction set's", 0, 0);
        }
        check_same(c, in, name, scanned, *first_scan, tolerance);
    }
}

void check_all(const std::vector<const char *> & kernels) {
    const int dims[] = {64, 80, 96, 128, 256, 72, 112, 192, 512};
    const int groups[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const int counts[] = {1, 2, 3, 4, 7};
    const float softcaps[] = {0.0f, 0.0f, 0.0f, 30.0f, 2.0f};
    cases::Random rng(11);
    uint64_t n = 0;
    for (int dim : dims) {
        for (int type = 0; type < 2; ++type) {
            if (type != 0 && dim % 32 != 0) {
                continue;
            }
            for (int i = 0; i < 45; ++i, ++n) {
                Case c{};
                c.head_dim = dim;
                c.type = static_cast<CellType>(type);
                c.n_groups = i % 15 == 9 ? 18 : counts[i % 5];
                c.group = groups[(i + i / 5) % 9];
                c.data = static_cast<Data>((i + i / 8) % static_cast<int>(Data::count));
                c.n_head_kv = 1 + static_cast<int>(rng.next() % 2);
                c.n_tokens = c.group > 4 ? 1 : 1 + static_cast<int>(rng.next() % 3);
                c.scale = (rng.next() % 5 == 0 ? -1.0f : 1.0f) / std::sqrt(static_cast<float>(dim));
                c.softcap = softcaps[rng.next() % 5];
                c.partial = rng.next() % 2 == 0;
                check_case(c, n, kernels);
            }
        }
    }
    std::printf("%llu cases, largest error %.3f of the worst case, rms %.3f, from the true logits %.3f, of |q| step\n",
                static_cast<unsigned long long>(n), worst, worst_rms, worst_rms_true);
}

}  // namespace

int main(int argc, char ** argv) {
    std::vector<const char *> kernels;
    for (const char * name : {"portable", "avx2", "avx512", "avx512vnni"}) {
        // the portable bytes and shares are what the others must agree with
        const bool wanted = argc < 2 || std::strcmp(argv[1], name) == 0 || std::strcmp(name, "portable") == 0;
        if (wanted && sketch_kernels(name) != nullptr) {
            kernels.push_back(name);
        }
    }
    if (argc > 1 && std::strcmp(kernels.back(), argv[1]) != 0) {
        std::printf("no such kernels on this machine\n");
        return 77;
    }
    for (const char * name : kernels) {
        std::printf("%s ", name);
    }
    std::printf("\n");
    check_all(kernels);
    std::printf(failures == 0 ? "ok\n" : "%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
