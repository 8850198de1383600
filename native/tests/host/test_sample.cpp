// Checks sampling against sample_reference() and against what it promises.
//   test_sample
//
// Tolerances. A chance is a sum over query heads of share * factor, a factor an exponential over a sum of n_groups products. The
// exponential is off by about 1 ulp + |x| * 2^-25, x down to -87, and sums of up to 40 groups round that often: 1e-5 relative, and one step
// for rounding to steps. Of the rows a kernel reads, 2^20 / weight is the chance that it found; what it found for the others can differ from
// the specification by as little, so a row must stand where the specification's running sum passes its mark within the sum of what all
// before can be off by. Where chances have no rounding in them, the lists must be equal.
#include <algorithm>

#include "sample_instance.h"

using namespace edgekv;

namespace {

int failures = 0;
double worst = 0.0;  // difference of chances, in what they can be off by

void fail(const Case & c, Isa isa, const char * what, double got, double want) {
    if (++failures <= 20) {
        std::printf("FAIL %s: %s: got %.9g, want %.9g [%s]\n", isa_name(isa), what, got, want, c.name().c_str());
    }
}

struct Rows {
    std::vector<int32_t> cells;
    std::vector<float> weights;
    SampleResult result;
};

Rows sampled(const Case & c, Instance & in, Isa isa) {
    Rows rows;
    const size_t n = static_cast<size_t>(c.n_groups) * kGroupCells;
    rows.cells.assign(n + 4, -9);
    rows.weights.assign(n + 4, -9.0f);
    const size_t bytes = sample_scratch_bytes(c.n_groups, c.group);
    in.scratch.assign(bytes + 128, 0x77);
    SampleProblem p = in.p;
    p.rows = rows.cells.data();
    p.weights = rows.weights.data();
    p.scratch = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(in.scratch.data()) + 63) / 64 * 64);
    rows.result = sample_rows(p, isa);
    if (!std::all_of(p.scratch + bytes, in.scratch.data() + in.scratch.size(), [](char x) { return x == 0x77; })) {
        fail(c, isa, "write past the scratch", 0, 0);
    }
    const size_t room = static_cast<size_t>(c.n_groups) * kGroupCells;
    for (size_t i = static_cast<size_t>(rows.result.n_rows); i < rows.cells.size(); ++i) {
        if (i >= room && (rows.cells[i] != -9 || rows.weights[i] != -9.0f)) {
            fail(c, isa, "write past the room for rows", rows.cells[i], -9);
            break;
        }
        rows.cells[i] = -9;  // what lies behind the last row says nothing
        rows.weights[i] = -9.0f;
    }
    return rows;
}

// The specification's, in steps of 2^-20.
struct Chances {
    std::vector<int32_t> p, by_share;

    explicit Chances(const Case & c) : p(static_cast<size_t>(c.n_groups) * kGroupCells, -1), by_share(p) {}
};

void check_rows(const Case & c, const Instance & in, Isa isa, const Rows & got, const Rows & want, const Chances & of) {
    const std::vector<int32_t> & chances = of.p;
    const SampleResult & r = got.result;
    if (r.n_visible != want.result.n_visible) {
        fail(c, isa, "visible cells", r.n_visible, want.result.n_visible);
    }
    // What each cell's chance can be off by, and all up to each.
    const auto off = [&](int32_t chance) { return chance == 0 || chance == kOne ? 1e-5 * chance + 0.51 : 1e-5 * chance + 1.0; };
    std::vector<double> before{static_cast<double>(in.p.offset)}, slack{0.0};
    for (size_t i = 0; i < chances.size(); ++i) {
        before.push_back(before.back() + chances[i]);
        const bool exact = !may_be_read(in, static_cast<int>(i)) || is_certain(in, static_cast<int>(i));
        slack.push_back(slack.back() + (exact ? 0.0 : off(chances[i])));
    }
    int certain = 0, last = -1;
    for (int i = 0; i < r.n_rows; ++i) {
        const int cell = got.cells[i];
        if (!(cell > last && cell < c.n_groups * kGroupCells && may_be_read(in, cell))) {
            return fail(c, isa, "rows ascend and are visible", cell, last);
        }
        last = cell;
        const double chance = kOne / static_cast<double>(got.weights[i]);
        const double step = std::rint(chance);
        if (!(got.weights[i] >= 1.0f) || std::fabs(chance - step) > 1e-6 * chance) {
            return fail(c, isa, "a weight is 2^20 / chance", got.weights[i], 1);
        }
        certain += step == kOne ? 1 : 0;
        if (is_certain(in, cell) && step != kOne) {
            fail(c, isa, "weight of a certain cell", got.weights[i], 1);
        }
        const double error = std::fabs(step - chances[cell]);
        if (!(error <= off(chances[cell]))) {
            return fail(c, isa, "chance", step, chances[cell]);
        }
        worst = std::max(worst, error / off(chances[cell]));
        // the mark that it stands on: exactly i marks were passed before, and one is in the cell
        const double mark = (i + 1.0) * kOne;
        if (!(before[cell] <= mark + slack[cell] && before[cell + 1] >= mark - slack[cell + 1])) {
            return fail(c, isa, "a row stands where the running sum passes its mark", before[cell], mark);
        }
    }
    if (certain != r.n_certain) {
        fail(c, isa, "certain rows", r.n_certain, certain);
    }
    // one row at the edge of its mark may be another than the specification's, and all chances may be off
    const auto is_read = [&](int cell) { return std::binary_search(got.cells.begin(), got.cells.begin() + r.n_rows, cell); };
    double missed = 0.0;
    for (int cell = 0; cell < c.n_groups * kGroupCells; ++cell) {
        missed += is_read(cell) ? 0.0 : of.by_share[cell] / static_cast<double>(kOne);
    }
    if (!(std::fabs(r.missed - missed) <= 1e-6 * (1.0 + missed + r.n_rows) + slack.back() / kOne)) {
        fail(c, isa, "share of what is not read", r.missed, missed);
    }
    if (!(*std::max_element(got.weights.begin(), got.weights.end()) <= 1.001f * 128.0f * r.n_visible / c.resolution + 1.0f) && c.resolution >= 30.0f) {
        fail(c, isa, "the floor bounds the weights", *std::max_element(got.weights.begin(), got.weights.end()), r.n_visible);
    }
    if (!(std::fabs(r.n_rows - std::floor(before.back() / kOne)) <= std::ceil(slack.back() / kOne))) {
        fail(c, isa, "number of rows", r.n_rows, before.back() / kOne);
    }
    for (int cell = 0; cell < c.n_groups * kGroupCells; ++cell) {
        if (is_certain(in, cell) && !std::binary_search(got.cells.begin(), got.cells.begin() + r.n_rows, cell)) {
            return fail(c, isa, "every certain cell is read", cell, cell);
        }
    }
    if (slack.back() == 0.0 && (got.cells != want.cells || got.weights != want.weights)) {
        fail(c, isa, "rows where all is certain", r.n_rows, want.result.n_rows);
    }
}

// The same walk in plain integers over chances that floats of the kernel's operations give: sums of products without rounding that matters,
// because every factor and share is a power of two. Then kernels and reference must agree in every row.
void check_exact(const Case & c, Instance & in, const std::vector<Isa> & isas) {
    for (int g = 0; g < c.group; ++g) {
        for (int i = 0; i < c.n_groups; ++i) {
            const size_t at = g * in.p.group_stride + static_cast<size_t>(i);
            if (in.sight[i].visible == 0) {
                continue;
            }
            in.tops[at] = 2.0f;
            for (int cell = 0; cell < kGroupCells; ++cell) {
                uint16_t & share = in.shares[g * in.p.cell_stride + static_cast<size_t>(i * kGroupCells + cell)];
                share = share == 0 ? 0 : upper_half(std::ldexp(1.0f, -((i * 5 + cell * 3 + g) % 9)));
            }
            in.sums[at] = 1.0f;
        }
    }
    int seen = 0;
    for (int i = 0; i < c.n_groups; ++i) {
        seen += in.sight[i].visible != 0;
    }
    in.p.sinks = nullptr;
    in.p.resolution = std::ldexp(static_cast<float>(seen * c.group), -4);  // every factor is 2^16
    Rows want;
    want.cells.assign(static_cast<size_t>(c.n_groups) * kGroupCells + 4, -9);
    want.weights.assign(want.cells.size(), -9.0f);
    SampleProblem p = in.p;
    p.rows = want.cells.data();
    p.weights = want.weights.data();
    want.result = sample_reference(p, nullptr, nullptr);
    for (const Isa isa : isas) {
        const Rows got = sampled(c, in, isa);
        if (got.cells != want.cells || got.weights != want.weights || got.result.n_certain != want.result.n_certain ||
            std::fabs(got.result.missed - want.result.missed) > 1e-6 * (1.0 + want.result.n_rows)) {
            fail(c, isa, "rows of chances without rounding", got.result.n_rows, want.result.n_rows);
        }
    }
}

void check_case(const Case & c, uint64_t seed, const std::vector<Isa> & isas) {
    Instance in(c, seed);
    Chances chances(c);
    Rows want;
    want.cells.assign(chances.p.size() + 4, -9);
    want.weights.assign(chances.p.size() + 4, -9.0f);
    SampleProblem p = in.p;
    p.rows = want.cells.data();
    p.weights = want.weights.data();
    want.result = sample_reference(p, chances.p.data(), chances.by_share.data());
    // the specification itself: hidden cells never, certain ones always, others at least with the floor's chance
    const double even = std::floor(c.resolution / 128.0 * kOne / std::max(1, want.result.n_visible) + 0.5);
    const int32_t least = static_cast<int32_t>(std::min<double>(std::max(even, 1.0), kOne));
    double expected = 0.0;
    for (int cell = 0; cell < c.n_groups * kGroupCells; ++cell) {
        const int32_t chance = chances.p[cell];
        if (!may_be_read(in, cell) ? chance != 0 : is_certain(in, cell) ? chance != kOne : chance != std::max(chances.by_share[cell], least) || chance > kOne) {
            fail(c, Isa::portable, "chance of the specification", chance, 0);
        }
        expected += chance / static_cast<double>(kOne);
    }
    if (want.result.n_rows != static_cast<int>(std::floor(expected + in.p.offset / static_cast<double>(kOne)))) {
        fail(c, Isa::portable, "rows of the specification", want.result.n_rows, expected);
    }
    for (const Isa isa : isas) {
        const Rows got = sampled(c, in, isa), again = sampled(c, in, isa);
        check_rows(c, in, isa, got, want, chances);
        if (got.cells != again.cells || got.weights != again.weights) {
            fail(c, isa, "two runs differ", 0, 0);
        }
    }
    check_exact(c, in, isas);
}

void check_all(const std::vector<Isa> & isas) {
    const int counts[] = {1, 2, 3, 7, 17, 40};
    const int groups[] = {1, 2, 3, 4, 5, 8, 9};
    const float resolutions[] = {1.0f, 30.0f, 500.0f, 4000.0f, 1e6f, 1e9f};
    cases::Random rng(5);
    uint64_t n = 0;
    for (int repeat = 0; repeat < 8; ++repeat) {
        for (int count : counts) {
            for (int group : groups) {
                Case c{};
                c.n_groups = count;
                c.group = group;
                c.resolution = resolutions[rng.next() % 6];
                c.logits = static_cast<Logits>(rng.next() % static_cast<int>(Logits::count));
                c.sinks = rng.next() % 2 == 0;
                c.hidden = rng.next() % 3 != 0;
                c.certain = static_cast<int>(rng.next() % 5 % 3);
                check_case(c, ++n, isas);
            }
        }
    }
    std::printf("%llu cases, largest error of a chance %.3f of the tolerance\n", static_cast<unsigned long long>(n), worst);
}

// Nothing to see: no rows. Everything in reach: all rows, weight 1.
void check_ends(const std::vector<Isa> & isas) {
    Case c{5, 3, 100.0f, Logits::normal, true, false, 0};
    for (const Isa isa : isas) {
        Instance none(c, 1);
        for (int i = 0; i < c.n_groups; ++i) {
            none.sight[i] = {0, 0};
            for (int g = 0; g < c.group; ++g) {
                none.tops[g * none.p.group_stride + i] = -kInf;
                none.sums[g * none.p.group_stride + i] = 0.0f;
            }
        }
        for (const bool sinks : {false, true}) {
            none.p.sinks = sinks ? none.sinks.data() : nullptr;
            const Rows rows = sampled(c, none, isa);
            if (rows.result.n_rows != 0 || rows.result.n_visible != 0 || rows.result.n_certain != 0) {
                fail(c, isa, "rows of nothing", rows.result.n_rows, 0);
            }
        }
        Case every = c;
        every.resolution = 1e9f;
        Instance all(every, 2);
        const Rows rows = sampled(every, all, isa);
        const int n = c.n_groups * kGroupCells;
        if (rows.result.n_rows != n || rows.result.n_certain != n || rows.result.n_visible != n || rows.result.missed != 0.0) {
            fail(every, isa, "rows of everything", rows.result.n_rows, n);
        }
    }
}

// The mean over offsets 1 / 4096 apart of a sum of exponentials times values, each times its weight, is the sum over all cells: each cell is
// read at as many offsets as its chance has in it, give or take 2.
void check_mean(const std::vector<Isa> & isas) {
    constexpr int kOffsets = 4096;
    const Case c{9, 3, 60.0f, Logits::peaked, false, true, 1};
    Instance in(c, 3);
    cases::Random rng(9);
    Chances chances(c);
    std::vector<double> value(chances.p.size());
    for (size_t i = 0; i < value.size(); ++i) {
        if (may_be_read(in, static_cast<int>(i))) {
            const double top = std::exp(in.tops[i / kGroupCells]);  // of the first head
            value[i] = top * of_upper_half(in.shares[i]) * (rng.normal() + 1.0f);
        }
    }
    Rows rows;
    rows.cells.resize(value.size());
    rows.weights.resize(value.size());
    SampleProblem p = in.p;
    p.rows = rows.cells.data();
    p.weights = rows.weights.data();
    sample_reference(p, chances.p.data(), nullptr);
    double want = 0.0, expected = 0.0, tolerance = 0.0;
    for (size_t i = 0; i < value.size(); ++i) {
        const double chance = chances.p[i] / static_cast<double>(kOne);
        want += value[i];
        expected += chance;
        tolerance += chance == 1.0 || chance == 0.0 ? 0.0 : std::fabs(value[i]) * 2.0 / kOffsets / chance;
    }
    for (const Isa isa : isas) {
        double mean = 0.0, n_rows = 0.0;
        for (int k = 0; k < kOffsets; ++k) {
            in.p.offset = k * (kOne / kOffsets);
            rows = sampled(c, in, isa);
            for (int i = 0; i < rows.result.n_rows; ++i) {
                mean += rows.weights[i] * value[rows.cells[i]] / kOffsets;
                n_rows += 1.0 / kOffsets;
            }
        }
        if (!(std::fabs(mean - want) <= tolerance) || !(tolerance < 0.02 * want)) {
            fail(c, isa, "mean over the offsets", mean, want);
        }
        if (!(std::fabs(n_rows - expected) <= 0.01)) {
            fail(c, isa, "mean number of rows", n_rows, expected);
        }
        std::printf("%s: mean over %d offsets %.3f, want %.3f +- %.3f; %.3f rows, want %.3f\n", isa_name(isa), kOffsets, mean, want, tolerance,
                    n_rows, expected);
    }
}

// The tokens of a conversation in which nothing moves: what one passes over another reads, also cells to which their sketch gives nothing.
// Each cell is read about as often as its chance says, with offsets as even as chance makes them.
void check_positions(const std::vector<Isa> & isas) {
    constexpr int kPositions = 20000;
    const Case c{3, 2, 40.0f, Logits::peaked, false, false, 0};
    Instance in(c, 4);
    for (int cell = 5; cell < c.n_groups * kGroupCells; cell += 7) {
        for (int g = 0; g < c.group; ++g) {
            in.shares[g * in.p.cell_stride + static_cast<size_t>(cell)] = 0;
        }
    }
    Chances chances(c);
    Rows rows;
    rows.cells.resize(chances.p.size());
    rows.weights.resize(chances.p.size());
    SampleProblem p = in.p;
    p.rows = rows.cells.data();
    p.weights = rows.weights.data();
    sample_reference(p, chances.p.data(), nullptr);
    for (const Isa isa : isas) {
        std::vector<int> reads(chances.p.size());
        for (int position = 0; position < kPositions; ++position) {
            in.p.offset = walk_offset(3, 1, position);
            rows = sampled(c, in, isa);
            for (int i = 0; i < rows.result.n_rows; ++i) {
                reads[static_cast<size_t>(rows.cells[i])] += 1;
            }
        }
        for (size_t cell = 0; cell < reads.size(); ++cell) {
            const double chance = chances.p[cell] / static_cast<double>(kOne), want = kPositions * chance;
            if (!(std::fabs(reads[cell] - want) <= 5.0 * std::sqrt(want * (1.0 - chance)) + 1e-3 * want + 1.0) || reads[cell] == 0) {
                fail(c, isa, "reads of a cell", reads[cell], want);
            }
        }
    }
}

}  // namespace

int main() {
    std::vector<Isa> isas;
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
        if (isa_supported(isa)) {
            isas.push_back(isa);
            std::printf("%s ", isa_name(isa));
        }
    }
    std::printf("\n");
    check_all(isas);
    check_ends(isas);
    check_mean(isas);
    check_positions(isas);
    std::printf(failures == 0 ? "ok\n" : "%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
