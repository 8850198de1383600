// Checks launch_sample() against sample_reference(), list by list.
//
// Where shares are powers of two and so is what they sum up to, floats are exact: rows, weights and counters have to be equal. Otherwise a
// probability may differ by one step and 2^-17 of itself (a few float operations and expf(), whose arguments are rounded), and the place
// of a mark by what such differences add up to before it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "cuda/kernels/sample_device.cu"

#include "attend_cases.h"
#include "device_array.h"

using namespace edgekv;
using namespace edgekv::gpu;
using test::DeviceArray;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kLayer = 11;
constexpr double kUnit = 1 << kChanceBits;
long n_rows_all = 0, n_chance_rows = 0;

struct Case {
    int n_streams, n_tokens, n_head_kv, group, n_groups;
    bool exact, sinks;
    float resolution;
};

uint16_t upper_half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return static_cast<uint16_t>(bits >> 16);
}

struct Instance {
    size_t n_lists, cell_stride, group_stride, sight_stride, row_stride;
    int first_stream;
    std::vector<uint16_t> cells;
    std::vector<float> tops, sums, sinks;
    std::vector<Sight> sight;
    std::vector<int64_t> k_idxs;
    std::vector<int32_t> positions;

    Instance(const Case & c, uint64_t seed) {
        cases::Random rng(seed);
        n_lists = static_cast<size_t>(c.n_streams) * c.n_tokens * c.n_head_kv;
        cell_stride = (static_cast<size_t>(c.n_groups) + seed % 2) * kGroupCells;
        group_stride = static_cast<size_t>(c.n_groups) + seed % 3;
        sight_stride = static_cast<size_t>(c.n_groups) + seed % 2;
        row_stride = static_cast<size_t>(c.n_groups) * kGroupCells + 1 + seed % 2;
        first_stream = static_cast<int>(rng.next() % 3);
        for (int i = 0; i < c.n_streams * c.n_tokens; ++i) {
            for (size_t g = 0; g < sight_stride; ++g) {
                const uint64_t r = rng.next(), seen = r % 8 == 0 ? 0 : r % 8 == 1 ? rng.next() : ~uint64_t{0};
                const uint64_t certain = c.exact ? 0 : g + 1 == static_cast<size_t>(c.n_groups) || r % 13 == 0 ? ~uint64_t{0} : 0;
                sight.push_back({c.exact ? ~uint64_t{0} : seen, certain & seen});
            }
        }
        cells.assign(n_lists * c.group * cell_stride, upper_half(std::numeric_limits<float>::quiet_NaN()));
        for (size_t row = 0; row < n_lists * c.group; ++row) {
            const Sight * of = sight.data() + row / c.group / c.n_head_kv * sight_stride;
            for (size_t g = 0; g < group_stride; ++g) {
                float sum = 0.0f;
                uint16_t * at = cells.data() + row * cell_stride + g * kGroupCells;
                const bool inside = g < static_cast<size_t>(c.n_groups);
                for (int i = 0; inside && i < kGroupCells && of[g].visible != 0; ++i) {  // else they are left as they were
                    // exact: 16 cells of the same weight
                    const float x = c.exact ? (i % 4 == 0 ? 1.0f : 0.0f) : of[g].visible >> i & 1 ? std::exp(-8.0f * rng.uniform() * rng.uniform()) : 0.0f;
                    at[i] = upper_half(x);
                    sum += x;
                }
                sums.push_back(inside ? sum : 7.0f);
                tops.push_back(!inside || of[g].visible == 0 ? -kInf : c.exact ? 3.0f : 12.0f * rng.normal());
            }
        }
        for (int h = 0; h < c.n_head_kv * c.group; ++h) {
            sinks.push_back(5.0f * rng.normal() + 10.0f);
        }
        for (int i = 0; i < c.n_streams * c.n_tokens; ++i) {
            k_idxs.push_back(static_cast<int64_t>(rng.next() % 97));
        }
        for (int i = 0; i < 97; ++i) {
            positions.push_back(static_cast<int32_t>(rng.next() % 200000));
        }
    }
};

struct Got {
    std::vector<int32_t> rows, n_rows;
    std::vector<float> weights;
    std::vector<SampleTotals> totals;

    Got(const Case & c, const Instance & in, Stream stream) {
        const DeviceArray<uint16_t> cells(in.cells);
        const DeviceArray<float> tops(in.tops), sums(in.sums), sinks(in.sinks), weights_d(std::vector<float>(in.n_lists * in.row_stride, -1.0f));
        const DeviceArray<Sight> sight(in.sight);
        const DeviceArray<int64_t> k_idxs(in.k_idxs);
        const DeviceArray<int32_t> positions(in.positions);
        const DeviceArray<int32_t> rows_d(std::vector<int32_t>(in.n_lists * in.row_stride, -7)), n_d(std::vector<int32_t>(in.n_lists, -7));
        const DeviceArray<SampleTotals> totals_d(std::vector<SampleTotals>(static_cast<size_t>(c.n_head_kv), SampleTotals{1, 2, 3, 4, 5}));
        const DeviceArray<char> scratch(sample_device_scratch_bytes(static_cast<int>(in.n_lists), c.n_groups, c.group));
        SampleBatch b{};
        b.n_streams = c.n_streams;
        b.first_stream = in.first_stream;
        b.n_tokens = c.n_tokens;
        b.n_head_kv = c.n_head_kv;
        b.group = c.group;
        b.n_groups = c.n_groups;
        b.shares = {cells.data(), tops.data(), sums.data(), in.cell_stride, in.group_stride};
        b.sinks = sinks.or_null(c.sinks);
        b.sight = sight.data();
        b.sight_stride = in.sight_stride;
        b.resolution = c.resolution;
        b.layer = kLayer;
        b.k_idxs = k_idxs.data();
        b.positions = positions.data();
        b.rows = rows_d.data();
        b.weights = weights_d.data();
        b.stride = in.row_stride;
        b.n_rows = n_d.data();
        b.totals = totals_d.data();
        b.scratch = scratch.data();
        launch_sample(b, stream);
        test::must(stream_sync(stream) && check());
        rows = rows_d.get();
        n_rows = n_d.get();
        weights = weights_d.get();
        totals = totals_d.get();
    }
};

template <class T>
bool same(const std::vector<T> & a, const std::vector<T> & b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// A list that need not be the reference's: each row where the reference's running sum may pass its mark, with the weight of its chance.
void check_list(const Case & c, const int32_t * rows, const float * weights, int n, const std::vector<int32_t> & chances, int offset, int n_want) {
    constexpr double kRelative = 0x1p-17;
    const int n_cells = c.n_groups * kGroupCells;
    std::vector<double> sum(static_cast<size_t>(n_cells) + 1, offset), loose(sum.size(), 2.0);  // before each cell, and how uncertain
    for (int i = 0; i < n_cells; ++i) {
        const bool sure = chances[i] == 0 || chances[i] == static_cast<int>(kUnit);
        sum[i + 1] = sum[i] + chances[i];
        loose[i + 1] = loose[i] + (sure ? kRelative * chances[i] : 1.0 + kRelative * chances[i]);
    }
    CHECK(std::fabs(n - n_want) <= 1 + loose[n_cells] / kUnit, "%d rows, not %d", n, n_want);
    int before = -1;
    for (int k = 0; k < n; ++k) {
        const int cell = rows[k];
        CHECK(cell > before && cell < n_cells, "row %d is %d, after %d", k, cell, before);
        if (cell <= before || cell >= n_cells) {
            return;
        }
        before = cell;
        const double mark = (k + 1) * kUnit, early = sum[cell] - mark, late = mark - sum[cell + 1];
        CHECK(early <= loose[cell] && late <= loose[cell + 1], "row %d at cell %d: the sum is %g before and %g behind, of %g", k, cell, sum[cell],
              sum[cell + 1], loose[cell]);
        const double chance = kUnit / weights[k], off = std::fabs(chance - chances[cell]);
        CHECK(off <= 1.0 + 2 * kRelative * chance, "the weight of cell %d says %g, not %d", cell, chance, chances[cell]);
        n_chance_rows += chances[cell] < static_cast<int>(kUnit);
    }
    n_rows_all += n;
}

void check_case(const Case & c, uint64_t seed, Stream stream) {
    const Instance in(c, seed);
    const Got got(c, in, stream), again(c, in, stream);
    CHECK(same(got.rows, again.rows) && same(got.weights, again.weights) && same(got.n_rows, again.n_rows) && same(got.totals, again.totals),
          "a second run differs");
    std::vector<SampleTotals> totals(static_cast<size_t>(c.n_head_kv), SampleTotals{1, 2, 3, 4, 5});
    std::vector<int32_t> rows(in.row_stride), chances(in.row_stride), by_share(in.row_stride);
    std::vector<float> weights(in.row_stride);
    std::vector<double> missed(static_cast<size_t>(c.n_head_kv), 5.0 * 0x1p-40);
    double slack = 0.0;
    for (size_t list = 0; list < in.n_lists; ++list) {
        const int head = static_cast<int>(list) % c.n_head_kv, query = static_cast<int>(list) / c.n_head_kv;
        SampleProblem p{};
        p.n_groups = c.n_groups;
        p.group = c.group;
        p.shares = in.cells.data() + list * c.group * in.cell_stride;
        p.tops = in.tops.data() + list * c.group * in.group_stride;
        p.sums = in.sums.data() + list * c.group * in.group_stride;
        p.cell_stride = in.cell_stride;
        p.group_stride = in.group_stride;
        p.sinks = c.sinks ? in.sinks.data() + head * c.group : nullptr;
        p.sight = in.sight.data() + query * in.sight_stride;
        p.resolution = c.resolution;
        p.offset = walk_offset(kLayer, head, in.positions[static_cast<size_t>(in.k_idxs[static_cast<size_t>(query)])]);
        p.rows = rows.data();
        p.weights = weights.data();
        const SampleResult want = sample_reference(p, chances.data(), by_share.data());
        const int32_t * got_rows = got.rows.data() + list * in.row_stride;
        const float * got_weights = got.weights.data() + list * in.row_stride;
        const int n = got.n_rows[list];
        totals[head].n_tokens += 1;
        totals[head].n_visible += static_cast<unsigned long long>(want.n_visible);
        totals[head].n_certain += static_cast<unsigned long long>(want.n_certain);
        totals[head].n_covered += 1;
        std::set<int> read(got_rows, got_rows + std::max(0, n));
        for (int cell = 0; cell < c.n_groups * kGroupCells; ++cell) {
            missed[head] += read.count(cell) != 0 ? 0.0 : by_share[cell] / static_cast<double>(1 << kChanceBits) / c.resolution;
        }
        CHECK(n >= 0 && n < static_cast<int>(in.row_stride) && got_rows[n] == -7 && got_weights[n] == -1.0f, "behind the %d rows", n);
        if (c.exact) {
            CHECK(n == want.n_rows && std::memcmp(rows.data(), got_rows, n * sizeof(int32_t)) == 0 &&
                  std::memcmp(weights.data(), got_weights, n * sizeof(float)) == 0, "%d rows, not the %d of the reference", n, want.n_rows);
            n_rows_all += n;
        } else {
            slack += 1;  // a cell whose chance is a step from certain
            check_list(c, got_rows, got_weights, n, chances, p.offset, want.n_rows);
        }
    }
    for (int h = 0; h < c.n_head_kv; ++h) {
        const SampleTotals & a = got.totals[h], & b = totals[h];
        CHECK(a.n_tokens == b.n_tokens && a.n_visible == b.n_visible && std::fabs(static_cast<double>(a.n_certain) - static_cast<double>(b.n_certain)) <= slack,
              "head %d: %llu tokens, %llu visible, %llu certain; not %llu, %llu, %llu", h, a.n_tokens, a.n_visible, a.n_certain, b.n_tokens, b.n_visible,
              b.n_certain);
        // chances are a step or a hundred thousandth off
        const double got_missed = static_cast<double>(a.missed) * 0x1p-40;
        const double room = static_cast<double>(a.n_tokens) * (1e-4 + c.n_groups * kGroupCells * 0x1p-20 / c.resolution);
        CHECK(a.n_covered == b.n_covered && std::fabs(got_missed - missed[h]) <= room, "head %d: missed %g, not %g", h, got_missed, missed[h]);
    }
}

}  // namespace

int main() {
    Stream stream = nullptr;
    test::must(stream_create(&stream));
    cases::Random rng(3);
    uint64_t seed = 0;
    for (int n_groups : {1, 2, 3, 15, 16, 17, 40, 130}) {
        for (int group : {1, 2, 4, 7, 16}) {
            Case c{};
            c.n_groups = n_groups;
            c.group = group;
            c.n_streams = 1 + static_cast<int>(rng.next() % 2);
            c.n_tokens = n_groups > 20 ? 1 : 1 + static_cast<int>(rng.next() % 3);
            c.n_head_kv = 1 + static_cast<int>(rng.next() % 3);
            c.sinks = rng.next() % 3 == 0;
            c.resolution = rng.next() % 3 == 0 ? 20.0f : rng.next() % 2 == 0 ? 400.0f : 4000.0f;
            check_case(c, ++seed, stream);
        }
    }
    for (int n_groups : {1, 2, 4, 16, 64}) {
        for (float resolution : {1.0f, 8.0f, 64.0f, 100.0f, 4000.0f}) {
            check_case({1, 1, 2, 2, n_groups, true, false, resolution}, ++seed, stream);
        }
    }
    stream_destroy(stream);
    CHECK(n_chance_rows > 1000, "only %ld rows came by chance", n_chance_rows);
    std::printf("%ld rows, %ld of them by chance\n", n_rows_all, n_chance_rows);
    std::printf(test::failures == 0 ? "ok\n" : "%d failures\n", test::failures);
    return test::failures == 0 ? 0 : 1;
}
