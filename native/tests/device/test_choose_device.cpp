// Checks launch_choose() against choose_pages(), list by list: the same rows.
#include "attention/cpu/page_choice.cpp"
#include "cuda/kernels/choose_device.cu"

#include "cell_rows.h"
#include "device_array.h"

using namespace edgekv;
using namespace edgekv::gpu;
using namespace test;

namespace {

struct Case {
    int n_streams, n_tokens, n_head_kv, n_cells, page_tokens, tokens;
    float share;
    int scores;  // 0: all the same, 1: few different ones, some negative, 2: any, 3: some of these are no numbers
    int exact_tokens;
};

long n_rows_all = 0;

void check_case(const Case & c, uint64_t seed, Stream stream) {
    Random rng(seed);
    const int first_stream = rng.below(3), n_pages = (c.n_cells + c.page_tokens - 1) / c.page_tokens;
    const int pages_per_stream = n_pages + rng.below(3), n_pages_all = (first_stream + c.n_streams) * pages_per_stream;
    const int n_groups = (c.n_cells + kGroupCells - 1) / kGroupCells;
    const size_t n_queries = static_cast<size_t>(c.n_streams) * c.n_tokens, n_lists = n_queries * c.n_head_kv;
    const size_t sight_stride = static_cast<size_t>(n_groups) + seed % 2, stride = static_cast<size_t>(c.n_cells) + 1;
    std::vector<Sight> sight(sight_stride * n_queries);
    for (size_t query = 0; query < n_queries; ++query) {
        for (int cell = 0; cell < c.n_cells; ++cell) {
            const bool page_seen = (cell / c.page_tokens * 7 + static_cast<int>(query)) % 5 != 0, always = cell / c.page_tokens % 11 == 10 || cell < 20;
            if (page_seen && !rng.one_of(8)) {
                Sight & of = sight[query * sight_stride + cell / kGroupCells];
                of.visible |= uint64_t{1} << cell % kGroupCells;
                of.certain |= uint64_t{always && seed % 3 != 0} << cell % kGroupCells;
            }
        }
    }
    std::vector<float> priority;
    for (int i = 0; i < c.n_head_kv * n_pages_all; ++i) {
        priority.push_back(c.scores == 0 ? 0.25f : c.scores == 1 ? 0.5f * static_cast<float>(rng.next() % 5) - 1.0f : rng.normal());
        if (c.scores == 3 && rng.one_of(3)) {
            priority.back() = std::copysign(kNan, rng.normal());
        }
    }

    const DeviceArray<Sight> sight_device(sight);
    const DeviceArray<float> priority_device(priority);
    const DeviceArray<int32_t> rows(std::vector<int32_t>(n_lists * stride, -7)), n_rows(std::vector<int32_t>(n_lists, -7));
    const DeviceArray<SampleTotals> totals(std::vector<SampleTotals>(static_cast<size_t>(c.n_head_kv), SampleTotals{1, 2, 3, 0, 0}));
    const DeviceArray<uint32_t> keys(choose_device_keys_bytes(static_cast<int>(n_lists), n_pages) / sizeof(uint32_t));
    const ListBatch lists = {c.n_streams, first_stream, c.n_tokens, c.n_head_kv, sight_device.data(), sight_stride,
                             rows.data(), stride, n_rows.data(),
                             totals.data()};
    launch_choose({lists, c.n_cells, c.page_tokens, pages_per_stream, static_cast<size_t>(n_pages_all), priority_device.data(), c.tokens, c.share,
                   c.exact_tokens, keys.data()}, stream);
    must(stream_sync(stream) && check());

    const std::vector<int32_t> got = rows.get(), n_got = n_rows.get();
    std::vector<SampleTotals> want_totals(static_cast<size_t>(c.n_head_kv), SampleTotals{1, 2, 3, 0, 0});
    std::vector<int32_t> candidates, want(stride);
    for (size_t list = 0; list < n_lists; ++list) {
        const int head = static_cast<int>(list) % c.n_head_kv, query = static_cast<int>(list) / c.n_head_kv;
        const size_t page = static_cast<size_t>(head) * n_pages_all + static_cast<size_t>(first_stream + query / c.n_tokens) * pages_per_stream;
        const ChoiceResult result = choose_pages({c.n_cells, c.page_tokens, sight.data() + query * sight_stride, priority.data() + page,
                                                  c.tokens, c.share, c.exact_tokens}, want.data(), candidates);
        CHECK(n_got[list] == result.n_rows && std::memcmp(want.data(), got.data() + list * stride, result.n_rows * sizeof(int32_t)) == 0,
              "list %zu of %d cells in pages of %d: %d rows, not %d", list, c.n_cells, c.page_tokens, n_got[list], result.n_rows);
        CHECK(got[list * stride + result.n_rows] == -7, "behind the rows");
        SampleTotals & t = want_totals[head];
        t.n_tokens += 1;
        t.n_visible += static_cast<unsigned>(result.n_visible);
        t.n_certain += static_cast<unsigned>(result.n_certain);
        n_rows_all += result.n_rows;
    }
    CHECK(std::memcmp(totals.get().data(), want_totals.data(), want_totals.size() * sizeof(SampleTotals)) == 0, "counters");
}

}  // namespace

int main() {
    const TestStream stream;
    uint64_t seed = 0;
    for (int n_cells : {1, 16, 61, 113, 577, 1541, 9001}) {
        for (int page_tokens : {16, 32, 48, 128}) {
            for (int scores = 0; scores < 4; ++scores) {
                ++seed;
                const float shares[] = {0.0f, 0.125f, 0.4f, 1.0f};
                check_case({1 + static_cast<int>(seed % 2), n_cells > 2000 ? 1 : 1 + static_cast<int>(seed % 3), 1 + static_cast<int>(seed % 3), n_cells,
                            page_tokens, seed % 4 == 0 ? static_cast<int>(seed * 37 % 600) : 0, shares[seed / 4 % 4], scores,
                            seed % 3 == 0 ? n_cells * 7 / 10 : 0},  // about so many are seen
                           seed, stream);
            }
        }
    }
    CHECK(n_rows_all > 10000, "%ld rows are few", n_rows_all);
    return finish();
}
