// Checks launch_sample() against sample_reference(), list by list.
//
// Where shares are powers of two and so is what they sum up to, floats are exact: rows, weights and counters have to be equal. Otherwise a
// probability may differ by one step and 2^-17 of itself (a few float operations and expf(), whose arguments are rounded), and the place
// of a mark by what such differences add up to before it in its page.
#include "cuda/kernels/sample_device.cu"

#include "device_array.h"
#include "sample_instance.h"

using namespace edgekv;
using namespace edgekv::gpu;
using namespace test;

namespace {

constexpr size_t kWords = 4096;
constexpr int kLayer = 11, kFirstStream = 1;
constexpr SampleTotals kTotalsBefore = {1, 2, 3, 4, 5};
long n_rows_all = 0, n_chance_rows = 0;

struct Got {
    std::vector<int32_t> rows, n_rows;
    std::vector<float> weights;
    std::vector<SampleTotals> totals;

    Got(const SampleCase & c, const SampleInstance & in, size_t stride, const std::vector<int64_t> & k_idxs, const std::vector<int32_t> & positions,
        const DeviceArray<unsigned long long> & words, Stream stream) {
        const size_t n_lists = static_cast<size_t>(c.n_lists());
        const DeviceArray<uint16_t> cells(in.shares);
        const DeviceArray<float> tops(in.tops), sums(in.sums), sinks(in.sinks), weights_d(std::vector<float>(n_lists * stride, -1.0f));
        const DeviceArray<Sight> sight(in.sight);
        const DeviceArray<int64_t> idxs(k_idxs);
        const DeviceArray<int32_t> of_cells(positions), rows_d(std::vector<int32_t>(n_lists * stride, -7)), n_d(std::vector<int32_t>(n_lists, -7));
        const DeviceArray<SampleTotals> totals_d(std::vector<SampleTotals>(static_cast<size_t>(c.n_head_kv), kTotalsBefore));
        std::vector<float> own(static_cast<size_t>(c.n_head_kv), 0.0f);
        for (int head = 1; head < c.n_head_kv; ++head) {
            own[head] = c.resolution_of(head);
        }
        const DeviceArray<float> own_d(own);
        SampleBatch b{};
        b.n_streams = c.n_streams;
        b.first_stream = kFirstStream;
        b.n_tokens = c.n_tokens;
        b.n_head_kv = c.n_head_kv;
        b.group = c.group;
        b.n_groups = c.n_groups;
        b.shares = {cells.data(), tops.data(), sums.data(), in.cell_stride, in.group_stride};
        b.sinks = sinks.or_null(c.sinks);
        b.sight = sight.data();
        b.sight_stride = in.sight_stride;
        b.resolution = c.resolution;
        b.exact_tokens = c.exact_tokens;
        b.resolutions = own_d.or_null(c.own);
        b.layer = kLayer;
        b.k_idxs = idxs.data();
        b.positions = of_cells.data();
        b.n_cells_stream = static_cast<int>(positions.size()) / (kFirstStream + c.n_streams);
        b.rows = rows_d.data();
        b.weights = weights_d.data();
        b.stride = stride;
        b.n_rows = n_d.data();
        b.totals = totals_d.data();
        b.words = words.data();
        launch_sample(b, stream);
        must(stream_sync(stream) && check());
        rows = rows_d.get();
        n_rows = n_d.get();
        weights = weights_d.get();
        totals = totals_d.get();
    }
};

// `words`: as launches of other shapes left them.
void check_case(const SampleCase & c, uint64_t seed, const DeviceArray<unsigned long long> & words, Stream stream) {
    must(sample_device_words_bytes(c.n_lists(), c.n_groups, c.group) <= kWords * sizeof(unsigned long long));
    SampleInstance in(c, seed);
    std::vector<int64_t> k_idxs;
    std::vector<int32_t> positions;
    const int n_cells_stream = c.n_cells() + 33, n_cache_cells = (kFirstStream + c.n_streams) * n_cells_stream;
    for (int i = 0; i < c.n_queries(); ++i) {
        k_idxs.push_back(in.rng.below(n_cache_cells));
    }
    for (int i = 0; i < n_cache_cells; ++i) {
        positions.push_back(in.rng.below(200000));
    }
    const size_t stride = static_cast<size_t>(c.n_cells()) + 1 + seed % 2;
    const Got got(c, in, stride, k_idxs, positions, words, stream), again(c, in, stride, k_idxs, positions, words, stream);
    expect(same(got.rows, again.rows) && same(got.weights, again.weights) && same(got.n_rows, again.n_rows) && same(got.totals, again.totals), c,
           "a second run is the same");
    std::vector<SampleTotals> totals(static_cast<size_t>(c.n_head_kv), kTotalsBefore);
    std::vector<double> missed(static_cast<size_t>(c.n_head_kv), 5.0 * 0x1p-40);
    const bool exact = c.logits == Logits::even;
    for (int list = 0; list < c.n_lists(); ++list) {
        const int head = list % c.n_head_kv, query = list / c.n_head_kv;
        SampleProblem p = in.problem(c, list);
        p.positions = positions.data() + static_cast<size_t>(kFirstStream + query / c.n_tokens) * n_cells_stream;
        p.turn = page_turn(kLayer, head, positions[static_cast<size_t>(k_idxs[static_cast<size_t>(query)])]);
        const SampledRows want(p);
        const int32_t * rows = got.rows.data() + list * stride;
        const float * weights = got.weights.data() + list * stride;
        const int n = got.n_rows[list];
        totals[head].n_tokens += 1;
        totals[head].n_visible += static_cast<unsigned long long>(want.result.n_visible);
        totals[head].n_certain += static_cast<unsigned long long>(want.result.n_certain);
        totals[head].n_covered += 1;
        if (!expect(n >= 0 && n < static_cast<int>(stride) && rows[n] == -7 && weights[n] == -1.0f, c, "nothing behind the rows", n, want.result.n_rows)) {
            continue;
        }
        missed[head] += missed_shares(want, rows, n) / c.resolution_of(head);
        if (exact) {
            expect(n == want.result.n_rows && std::memcmp(want.cells.data(), rows, n * sizeof(int32_t)) == 0 &&
                   std::memcmp(want.weights.data(), weights, n * sizeof(float)) == 0, c, "rows without rounding", n, want.result.n_rows);
        } else {
            check_list(c, p, want, rows, weights, n, {0x1p-17, 0.0, 2.0});
        }
        n_rows_all += n;
        for (int i = 0; i < n; ++i) {
            n_chance_rows += !exact && want.chances[rows[i]] < test::kOne;
        }
    }
    const double slack = exact ? 0.0 : c.n_lists();  // a cell whose chance is a step from certain
    for (int h = 0; h < c.n_head_kv; ++h) {
        const SampleTotals & a = got.totals[h], & b = totals[h];
        const double n_tokens = static_cast<double>(a.n_tokens);
        expect_equal(c, "tokens", n_tokens, static_cast<double>(b.n_tokens));
        expect_equal(c, "visible cells", static_cast<double>(a.n_visible), static_cast<double>(b.n_visible));
        expect_near(c, "certain rows", static_cast<double>(a.n_certain), static_cast<double>(b.n_certain), slack);
        expect_equal(c, "tokens with shares", static_cast<double>(a.n_covered), static_cast<double>(b.n_covered));
        // chances are a step or a hundred thousandth off
        const double room = n_tokens * (1e-4 + c.n_cells() * 0x1p-20 / c.resolution);
        expect_near(c, "missed", static_cast<double>(a.missed) * 0x1p-40, missed[h], room);
    }
}

}  // namespace

int main() {
    const TestStream stream;
    const DeviceArray<unsigned long long> words(kWords);
    Random rng(3);
    uint64_t seed = 0;
    const float resolutions[] = {20.0f, 400.0f, 4000.0f};
    for (int n_groups : {1, 2, 3, 15, 16, 17, 40, 130, 540}) {  // the last are more chunks than a warp has lanes, and more groups than a block has threads
        for (int group : {1, 2, 4, 7, 16}) {
            if (n_groups > 500 && group != 2) {
                continue;
            }
            SampleCase c{};
            c.n_groups = n_groups;
            c.group = group;
            c.n_streams = 1 + rng.below(2);
            c.n_tokens = n_groups > 20 ? 1 : 1 + rng.below(3);
            c.n_head_kv = 1 + rng.below(3);
            c.logits = static_cast<Logits>(rng.below(static_cast<int>(Logits::even)));
            c.sinks = rng.one_of(3);
            c.hidden = true;
            c.certain = 1;
            c.resolution = rng.pick(resolutions);
            c.own = rng.one_of(2);
            c.exact_tokens = rng.one_of(3) ? c.n_cells() / 2 : 0;  // about so many are seen
            check_case(c, ++seed, words, stream);
        }
    }
    for (int n_groups : {1, 2, 4, 16, 64}) {
        for (float resolution : {1.0f, 8.0f, 64.0f, 100.0f, 4000.0f}) {
            check_case({1, 1, 2, n_groups, 2, resolution, Logits::even, false, false, 0}, ++seed, words, stream);
        }
    }
    CHECK(n_chance_rows > 1000, "only %ld rows came by chance", n_chance_rows);
    std::printf("%ld rows, %ld of them by chance\n", n_rows_all, n_chance_rows);
    return finish();
}
