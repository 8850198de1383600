// Checks sampling against sample_reference() and against what it promises.
//   test_sample
//
// Tolerances. A chance is a sum over query heads of share * factor, a factor an exponential over a sum of n_groups products. The
// exponential is off by about 1 ulp + |x| * 2^-25, x down to -87, and sums of up to 40 groups round that often: 1e-5 relative, and one step
// for rounding to steps. Of the rows a kernel reads, 2^20 / weight is the chance that it found; what it found for the others can differ from
// the specification by as little, so a row must stand where the running sum of its page passes its mark within the sum of what all
// before in the page can be off by. Where chances have no rounding in them, the lists must be equal.
#include "sample_instance.h"

using namespace edgekv;
using namespace test;

namespace {

double worst = 0.0;  // difference of chances, in what they can be off by

struct Rows {
    std::vector<int32_t> cells;
    std::vector<float> weights;
    SampleResult result;

    template <class Other>
    bool same(const Other & other) const { return cells == other.cells && weights == other.weights; }
};

Rows sampled(const SampleCase & c, SampleProblem p, Isa isa) {
    const By by{c, isa_name(isa)};
    Rows rows;
    const size_t n = static_cast<size_t>(c.n_cells());
    rows.cells.assign(n + 4, -9);
    rows.weights.assign(n + 4, -9.0f);
    const size_t bytes = sample_scratch_bytes(c.n_groups, c.group);
    std::vector<char> scratch(bytes + 128, 0x77);
    p.rows = rows.cells.data();
    p.weights = rows.weights.data();
    p.scratch = aligned(scratch);
    rows.result = sample_rows(p, isa);
    expect(std::all_of(p.scratch + bytes, scratch.data() + scratch.size(), [](char x) { return x == 0x77; }), by, "nothing behind the scratch");
    for (size_t i = static_cast<size_t>(rows.result.n_rows); i < rows.cells.size(); ++i) {
        expect(i < n || (rows.cells[i] == -9 && rows.weights[i] == -9.0f), by, "nothing behind the room for rows", rows.cells[i], -9);
        rows.cells[i] = -9;  // what lies behind the last row says nothing
        rows.weights[i] = -9.0f;
    }
    return rows;
}

void check_rows(const By<SampleCase> & by, const SampleProblem & p, const Rows & got, const SampledRows & want) {
    const SampleResult & r = got.result;
    expect_equal(by, "visible cells", r.n_visible, want.result.n_visible);
    const double slack = check_list(by, p, want, got.cells.data(), got.weights.data(), r.n_rows, {1e-5, 0.51, 0.0}, &worst);
    expect_equal(by, "certain rows", r.n_certain, std::count(got.weights.begin(), got.weights.end(), 1.0f));
    // one row at the edge of its mark may be another than the specification's, and all chances may be off
    const double missed = missed_shares(want, got.cells.data(), r.n_rows);
    expect_near(by, "share of what is not read", r.missed, missed, 1e-6 * (1.0 + missed + r.n_rows) + slack / kOne);
    const float heaviest = *std::max_element(got.weights.begin(), got.weights.end());
    expect(heaviest <= 1.001f * 128.0f * r.n_visible / by.c.resolution + 1.0f || by.c.resolution < 30.0f, by, "the floor bounds the weights", heaviest,
           r.n_visible);
    expect(slack != 0.0 || got.same(want), by, "rows where all is certain", r.n_rows, want.result.n_rows);
}

// The same walk in plain integers over chances that floats of the kernel's operations give: sums of products without rounding that matters,
// because every factor and share is a power of two. Then kernels and reference must agree in every row.
void check_exact(SampleCase c, SampleInstance & in, uint32_t turn, const std::vector<Isa> & isas) {
    for (int g = 0; g < c.group; ++g) {
        for (int i = 0; i < c.n_groups; ++i) {
            const size_t at = g * in.group_stride + static_cast<size_t>(i);
            if (in.sight[i].visible == 0) {
                continue;
            }
            in.tops[at] = 2.0f;
            for (int cell = 0; cell < kGroupCells; ++cell) {
                uint16_t & share = in.shares[g * in.cell_stride + static_cast<size_t>(i * kGroupCells + cell)];
                share = share == 0 ? 0 : upper_half(std::ldexp(1.0f, -((i * 5 + cell * 3 + g) % 9)));
            }
            in.sums[at] = 1.0f;
        }
    }
    int seen = 0;
    for (int i = 0; i < c.n_groups; ++i) {
        seen += in.sight[i].visible != 0;
    }
    c.sinks = false;
    c.resolution = std::ldexp(static_cast<float>(seen * c.group), -4);  // every factor is 2^16
    SampleProblem p = in.problem(c);
    p.turn = turn;
    const SampledRows want(p);
    for (const Isa isa : isas) {
        const Rows got = sampled(c, p, isa);
        const By by{c, isa_name(isa)};
        expect(got.same(want), by, "rows of chances without rounding", got.result.n_rows, want.result.n_rows);
        expect_equal(by, "certain rows, without rounding", got.result.n_certain, want.result.n_certain);
        expect_near(by, "missed, without rounding", got.result.missed, want.result.missed, 1e-6 * (1.0 + want.result.n_rows));
    }
}

void check_case(SampleCase c, uint64_t seed, const std::vector<Isa> & isas) {
    SampleInstance in(c, seed);
    if (c.exact_tokens > 0 && seed % 2 == 0) {
        c.exact_tokens = static_cast<int>(SampledRows(in.problem(c)).result.n_visible);  // the bound itself
    }
    SampleProblem p = in.problem(c);
    p.turn = static_cast<uint32_t>(seed % 3 == 0 ? 0 : in.rng.next());
    const SampledRows want(p);
    // the specification itself: hidden cells never, certain ones always, others at least with the floor's chance
    const By specified{c, "the specification"};
    const double even = std::floor(c.resolution / 128.0 * kOne / std::max(1, want.result.n_visible) + 0.5);
    const bool whole = want.result.n_visible <= c.exact_tokens;
    const int32_t least = whole ? kOne : static_cast<int32_t>(std::min<double>(std::max(even, 1.0), kOne));
    int64_t expected = 0, sum = 0;
    for (int cell = 0; cell < c.n_cells(); ++cell) {
        const int32_t chance = want.chances[cell];
        expect(!may_be_read(p, cell) ? chance == 0 : is_certain(p, cell) ? chance == kOne : chance == std::max(want.by_share[cell], least) && chance <= kOne,
               specified, "chance", chance, want.by_share[cell]);
        sum = (begins_page(cell) ? page_begin(p, cell) : sum) + chance;
        expected += begins_page(cell + 1) ? sum / kOne : 0;
    }
    expect_equal(specified, "rows", want.result.n_rows, expected);
    for (const Isa isa : isas) {
        const By by{c, isa_name(isa)};
        const Rows got = sampled(c, p, isa);
        check_rows(by, p, got, want);
        expect(got.same(sampled(c, p, isa)), by, "two runs are the same");
    }
    check_exact(c, in, p.turn, isas);
}

void check_all(const std::vector<Isa> & isas) {
    const int counts[] = {1, 2, 3, 7, 17, 40};
    const int groups[] = {1, 2, 3, 4, 5, 8, 9};
    const float resolutions[] = {1.0f, 30.0f, 500.0f, 4000.0f, 1e6f, 1e9f};
    Random rng(5);
    uint64_t n = 0;
    for (int repeat = 0; repeat < 3; ++repeat) {
        for (int count : counts) {
            for (int group : groups) {
                SampleCase c{};
                c.n_streams = c.n_tokens = c.n_head_kv = 1;
                c.n_groups = count;
                c.group = group;
                c.resolution = rng.pick(resolutions);
                c.logits = static_cast<Logits>(rng.below(static_cast<int>(Logits::count)));
                c.sinks = rng.one_of(2);
                c.hidden = !rng.one_of(3);
                c.certain = rng.below(5) % 3;
                c.exact_tokens = rng.one_of(4) ? c.n_cells() / 2 : 0;
                check_case(c, ++n, isas);
            }
        }
    }
    std::printf("%llu cases, largest error of a chance %.3f of the tolerance\n", static_cast<unsigned long long>(n), worst);
}

// Chances are the shares of attention: the mean over query heads of the softmax of what the token sees, of which a sink of the model takes a part.
// Shares have eight bits, and are cut off there.
void check_shares() {
    constexpr double kTruncation = 1.0 / 128.0, kStep = 1.0 / kOne, kFloats = 1e-6;
    for (const bool sinks : {false, true}) {
        const SampleCase c{1, 1, 1, 5, 3, 20.0f, Logits::normal, sinks, true, 0};
        SampleInstance in(c, 1);
        const SampleProblem p = in.problem(c);
        std::vector<double> attention(static_cast<size_t>(c.n_cells()));
        for (int g = 0; g < c.group; ++g) {
            std::vector<float> logits;
            double total = sinks ? std::exp(in.sinks[g]) : 0.0;
            for (int cell = 0; cell < c.n_cells(); ++cell) {
                logits.push_back(may_be_read(p, cell) ? 3.0f * in.rng.normal() : -kInf);
                total += std::exp(static_cast<double>(logits.back()));
            }
            for (int i = 0; i < c.n_groups; ++i) {
                const size_t at = g * in.group_stride + static_cast<size_t>(i), first = g * in.cell_stride + static_cast<size_t>(i * kGroupCells);
                const float top = *std::max_element(&logits[i * kGroupCells], &logits[i * kGroupCells] + kGroupCells);
                in.tops[at] = top;
                in.sums[at] = 0.0f;
                for (int cell = 0; cell < kGroupCells && top > -kInf; ++cell) {  // without a top they stay NaN
                    const float logit = logits[i * kGroupCells + cell];
                    in.shares[first + static_cast<size_t>(cell)] = upper_half(std::exp(logit - top));
                    in.sums[at] += std::exp(logit - top);
                    attention[i * kGroupCells + cell] += std::exp(static_cast<double>(logit)) / total / c.group;
                }
            }
        }
        const SampledRows found(p);
        for (int cell = 0; cell < c.n_cells(); ++cell) {
            const double want = std::min(c.resolution * attention[cell], 1.0), got = found.by_share[cell] * kStep;
            expect(got <= want * (1.0 + kFloats) + kStep && got >= want * (1.0 - kTruncation - kFloats) - kStep, c, "chance by share", got, want);
        }
    }
}

// The hash tells layers and heads apart, and offsets tell pages apart: in each sixteenth of the circle lie nearly as many as in any other.
void check_turns() {
    int n[16] = {}, of_pages[16] = {};
    for (int i = 0; i < 80 * 8; ++i) {
        n[page_turn(i / 8, i % 8, 5) >> 28] += 1;
    }
    for (const int of : n) {
        CHECK(of > 20 && of < 60, "%d of 640", of);
    }
    for (int first = 0; first < 64 * kWalkCells; first += kWalkCells) {
        of_pages[walk_offset(0, first) >> (kChanceBits - 4)] += 1;
    }
    for (const int of : of_pages) {  // multiples of the golden ratio
        CHECK(of >= 3 && of <= 5, "%d of 64", of);
    }
}

// The tokens of a conversation in which nothing moves: what one passes over another reads, also cells to which their sketch gives nothing.
// Each cell is read about as often as its chance says, because a page's offsets spread evenly.
void check_positions(const std::vector<Isa> & isas) {
    constexpr int kPositions = 20000;
    const SampleCase c{1, 1, 1, 3, 2, 40.0f, Logits::peaked, false, false, 0};
    SampleInstance in(c, 4);
    for (int cell = 5; cell < c.n_cells(); cell += 7) {
        for (int g = 0; g < c.group; ++g) {
            in.shares[g * in.cell_stride + static_cast<size_t>(cell)] = 0;
        }
    }
    SampleProblem p = in.problem(c);
    const SampledRows reference(p);
    for (const Isa isa : isas) {
        const By by{c, isa_name(isa)};
        std::vector<int> reads(reference.chances.size());
        for (int position = 0; position < kPositions; ++position) {
            p.turn = page_turn(3, 1, position);
            const Rows rows = sampled(c, p, isa);
            for (int i = 0; i < rows.result.n_rows; ++i) {
                reads[static_cast<size_t>(rows.cells[i])] += 1;
            }
        }
        for (size_t cell = 0; cell < reads.size(); ++cell) {
            const double chance = reference.chances[cell] / static_cast<double>(kOne), want = kPositions * chance;
            expect_near(by, "reads of a cell", reads[cell], want, 1e-3 * want + 8.0);
            expect(reads[cell] > 0, by, "every cell is read sometimes", reads[cell], want);
        }
    }
}

}  // namespace

int main() {
    std::vector<Isa> isas;
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::neon}) {
        if (isa_supported(isa)) {
            isas.push_back(isa);
            std::printf("%s ", isa_name(isa));
        }
    }
    std::printf("\n");
    check_all(isas);
    check_shares();
    check_turns();
    check_positions(isas);
    return finish();
}
