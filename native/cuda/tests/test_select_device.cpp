// Checks selection on the device against select_pages(), list by list.
//
// Where no estimates count, values are exact on both sides: lists, counters and histogram have to be equal. Where they do, a mass
// is off by at most kRounding of itself on either side, so lists may differ by pages whose values lie so close together (by
// values that are equal on both sides: never), or, where a coverage target decides, by pages of so little mass. Such lists have
// to be rare.
#include <cstdlib>

#include "../select_device.cu"

#include "device_array.h"
#include "select_cases.h"

using namespace edgekv;
using namespace edgekv::gpu;
using namespace cases;
using test::DeviceArray;

namespace {

int n_lists_all = 0, n_lists_different = 0;

// The same on the device, twice over, with what it left.
struct Got {
    std::vector<int32_t> pages, n_taken;
    std::vector<float> covered, known, mass_max, mass_sum;
    std::vector<SelectTotals> totals;
    std::vector<ValueCounts> counts;

    Got(const Instance & in, Stream stream) {
        const Case & c = in.c;
        const StepState now = {c.n_ubatch, 0, std::max(c.threshold, 0.0f), c.scans_all, c.count, c.n_tokens};
        const DeviceArray<StepState> state(std::vector<StepState>{now});
        const DeviceArray<float> estimates(in.estimates), sinks(in.sinks), standing(in.standing), priority(in.priority),
            known_d(in.known), max_d(in.mass_max), sum_d(in.mass_sum), covered_d(std::vector<float>(in.n_lists * c.group, -5.0f));
        const DeviceArray<uint8_t> pinned(in.pinned);
        const DeviceArray<int32_t> pages_d(std::vector<int32_t>(in.n_lists * in.list_stride, -7)),
            n_d(std::vector<int32_t>(in.n_lists, -7));
        const DeviceArray<SelectTotals> totals_d(
            std::vector<SelectTotals>(static_cast<size_t>(c.n_head_kv), SelectTotals{1, 2, 3, 4}));
        const DeviceArray<ValueCounts> counts_d(std::vector<ValueCounts>(1));
        const DeviceArray<char> scratch(select_device_scratch_bytes(static_cast<int>(in.n_lists), c.n_pages, c.group));

        SelectBatch b{};
        b.n_streams = c.n_streams;
        b.first_stream = in.first_stream;
        b.n_tokens = c.n_tokens;
        b.n_head_kv = c.n_head_kv;
        b.group = c.group;
        b.n_pages = c.n_pages;
        b.per_page = c.per_page;
        b.page_tokens = in.page_tokens;
        b.pages_per_stream = in.pages_per_stream;
        b.head_stride = static_cast<size_t>(in.n_pages_all);
        b.estimates = estimates.or_null(in.estimated());
        b.estimate_stride = in.estimate_stride;
        b.known = known_d.data();
        b.sinks = sinks.or_null(c.sinks);
        b.standing = standing.data();
        b.standing_stride = in.standing_stride;
        b.priority = priority.or_null(c.priority);
        b.pinned = pinned.data();
        b.reselect = c.reselect;
        b.first_turn = Instance::kFirstTurn;
        b.share = c.share;
        b.tokens = c.tokens;
        b.min_tokens = c.min_tokens;
        b.pooled = c.threshold >= 0.0f;
        b.coverage = c.coverage;
        b.floor = c.floor;
        b.blend = c.blend;
        b.dense_heads = c.dense_heads;
        b.pages = pages_d.data();
        b.list_stride = in.list_stride;
        b.n_pages_taken = n_d.data();
        b.covered = covered_d.data();
        b.mass_max = max_d.or_null(c.feed);
        b.mass_sum = sum_d.or_null(c.feed);
        b.totals = totals_d.data();
        b.counts = counts_d.data();
        b.scratch = scratch.data();
        launch_select(b, state.data(), stream);
        test::must(stream_sync(stream));
        pages = pages_d.get();
        n_taken = n_d.get();
        covered = covered_d.get();
        known = known_d.get();
        mass_max = max_d.get();
        mass_sum = sum_d.get();
        totals = totals_d.get();
        counts = counts_d.get();
    }
};

bool same_bytes(const Got & a, const Got & b) {
    const auto same = [](const auto & x, const auto & y) {
        return std::memcmp(x.data(), y.data(), x.size() * sizeof(x[0])) == 0;
    };
    return same(a.pages, b.pages) && same(a.n_taken, b.n_taken) && same(a.covered, b.covered) && same(a.known, b.known) &&
           same(a.mass_max, b.mass_max) && same(a.mass_sum, b.mass_sum) && same(a.totals, b.totals) && same(a.counts, b.counts);
}

double largest_difference(const std::vector<float> & a, const std::vector<float> & b) {
    double largest = 0.0;
    for (size_t i = 0; i < a.size(); ++i) {
        largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - b[i]));
    }
    return largest;
}

void check_case(const char * what, const Case & c, uint64_t seed, Stream stream) {
    const Instance in(c, seed);
    const Expected want(in);
    const Got got(in, stream);
    char name[160];
    std::snprintf(name, sizeof(name), "%s: %d pages of %d, %d streams, %d tokens, %d heads of %d, seed %d", what, c.n_pages,
                  c.per_page, c.n_streams, c.n_tokens, c.n_head_kv, c.group, static_cast<int>(seed));

    bool equal = true;
    std::vector<SelectTotals> totals(static_cast<size_t>(c.n_head_kv), SelectTotals{1, 2, 3, 4});
    for (size_t list = 0; list < in.n_lists; ++list) {
        const int32_t * row = got.pages.data() + list * in.list_stride;
        const int n = got.n_taken[list];
        CHECK(n >= 0 && n <= c.n_pages, "%d pages [%s]", n, name);
        if (n < 0 || n > c.n_pages) {
            return;
        }
        const std::vector<int32_t> list_got(row, row + n);
        CHECK(std::is_sorted(list_got.begin(), list_got.end()), "[%s]", name);
        CHECK(std::count(row + c.n_pages, row + in.list_stride, -7) == 3, "written behind the list [%s]", name);
        n_lists_all += 1;
        if (list_got != want.pages[list]) {
            n_lists_different += 1;
            equal = false;
            CHECK(in.estimated() && rounding_decides(in, list, list_got, want.pages[list]), "list %zu has %d pages, not %d [%s]",
                  list, n, want.results[list].n_taken, name);
        }
        SelectTotals & t = totals[list % c.n_head_kv];
        const SelectResult & r = want.results[list];
        t = {t.n_steps + 1, t.n_visible + r.n_visible, t.coverage + r.coverage, t.n_fallbacks + r.fell_back};
    }
    const double tolerance = in.estimated() ? 4e-6 : 0.0;
    if (equal) {
        CHECK(largest_difference(got.covered, want.covered) <= tolerance, "by %g [%s]",
              largest_difference(got.covered, want.covered), name);
        CHECK(largest_difference(got.mass_max, want.mass_max) <= tolerance * c.n_tokens, "by %g [%s]",
              largest_difference(got.mass_max, want.mass_max), name);
        CHECK(largest_difference(got.mass_sum, want.mass_sum) <= tolerance * c.n_tokens, "by %g [%s]",
              largest_difference(got.mass_sum, want.mass_sum), name);
        for (int head = 0; head < c.n_head_kv; ++head) {
            const SelectTotals &a = got.totals[head], &b = totals[head];
            CHECK(a.n_steps == b.n_steps && a.n_visible == b.n_visible && a.n_fallbacks == b.n_fallbacks &&
                      std::fabs(a.coverage - b.coverage) <= 1e-5 * static_cast<double>(in.n_queries),
                  "head %d: %g %g %g %g, not %g %g %g %g [%s]", head, a.n_steps, a.n_visible, a.coverage, a.n_fallbacks,
                  b.n_steps, b.n_visible, b.coverage, b.n_fallbacks, name);
        }
    }
    CHECK(largest_difference(got.known, want.known) <= tolerance, "by %g [%s]", largest_difference(got.known, want.known), name);
    const ValueCounts & counts = got.counts.front();
    int64_t moved = 0, balance = 0;
    for (int b = 0; b < kValueBuckets; ++b) {
        moved += std::abs(static_cast<int64_t>(counts.buckets[b]) - want.buckets[b]);
        balance += static_cast<int64_t>(counts.buckets[b]) - want.buckets[b];
    }
    // a value at the edge of a bucket may fall on either side of it
    const int64_t at_edges = in.estimated() ? 2 + static_cast<int64_t>(in.n_lists) * c.n_pages / 1000 * 2 : 0;
    CHECK(balance == 0 && moved <= at_edges, "%d values counted elsewhere [%s]", static_cast<int>(moved), name);
    CHECK(counts.n_budget == want.n_budget && counts.n_pinned == want.n_pinned, "%g %g, not %g %g [%s]", counts.n_budget,
          counts.n_pinned, want.n_budget, want.n_pinned, name);
    if (seed % 4 == 0) {
        CHECK(same_bytes(got, Got(in, stream)), "another run gave other bytes [%s]", name);
    }
}

void check_visible(int n_pages, uint64_t seed, Stream stream) {
    Case c = {n_pages};
    c.n_streams = 1 + static_cast<int>(seed % 2);
    c.n_tokens = 1 + static_cast<int>(seed % 3);
    c.standing = static_cast<Standing>(seed % 4);
    const Instance in(c, seed);
    const DeviceArray<float> standing(in.standing);
    const DeviceArray<int32_t> pages(std::vector<int32_t>(in.n_lists * in.list_stride, -7)),
        n_taken(std::vector<int32_t>(in.n_lists, -7));
    launch_list_visible({c.n_streams, c.n_tokens, c.n_head_kv, n_pages, standing.data(), in.standing_stride, pages.data(),
                         in.list_stride, n_taken.data()},
                        stream);
    test::must(stream_sync(stream));
    std::vector<int32_t> want(in.n_lists * in.list_stride, -7), want_n(in.n_lists, 0);
    for (size_t list = 0; list < in.n_lists; ++list) {
        for (int page = 0; page < n_pages; ++page) {
            if (in.standing[list / c.n_head_kv * in.standing_stride + page] >= 0.0f) {
                want[list * in.list_stride + want_n[list]++] = page;
            }
        }
    }
    CHECK(pages.get() == want && n_taken.get() == want_n && standing.get() == in.standing, "%d pages", n_pages);
}

}  // namespace

int main() {
    Stream stream = nullptr;
    test::must(stream_create(&stream));
    uint64_t seed = 0;
    for (int n_pages : {1, 2, 15, 16, 17, 27, 61, 113, 482, 577, 1110, 1541, 2047, 3330}) {
        const int rounds = n_pages < 200 ? 6 : n_pages < 1200 ? 2 : 1;
        for (int round = 0; round < rounds; ++round) {
            cases::Random rng(++seed);
            Case base = {n_pages};
            base.group = 1 + static_cast<int>(seed % 8);
            base.per_page = 1 + static_cast<int>(rng.next() % 2);
            base.n_head_kv = n_pages > 1200 ? 1 : 1 + static_cast<int>(rng.next() % 3);
            base.sinks = rng.next() % 3 == 0;
            base.share = rng.uniform();
            base.blend = static_cast<float>(rng.next() % 3) * 0.5f;
            check_case("budget", base, seed, stream);

            Case c = base;
            c.estimates = Estimates::none;
            c.ties = true;
            c.dense_heads = 3;
            check_case("priority alone, with ties", c, seed, stream);
            c.priority = false;
            c.pins = false;
            c.tokens = 16 * c.per_page * (1 + n_pages / 3);
            check_case("no opinion", c, seed, stream);

            c = base;
            c.ties = true;
            c.estimates = Estimates::half_empty;
            c.min_tokens = 200;
            c.count = false;
            check_case("half of the sketches are empty", c, seed, stream);
            c.estimates = round % 2 == 0 ? Estimates::empty : Estimates::equal;
            c.blend = 0.5f;
            check_case("all sketches are empty, or alike", c, seed, stream);
            c.estimates = Estimates::equal;  // values as well: the budget is spent in the middle of a tie
            c.priority = false;
            c.blend = 0.25f;
            c.coverage = c.share * 0.7f;
            check_case("alike, with a coverage target", c, seed, stream);
            c.floor = 1.0f;
            check_case("alike, with a floor", c, seed, stream);

            c = base;
            c.sinks = true;
            c.sink = 60.0f + 40.0f * static_cast<float>(round % 3);
            check_case("sinks take all, or nearly", c, seed, stream);

            c = base;
            c.standing = Standing::nothing;
            check_case("nothing is visible", c, seed, stream);
            c.standing = Standing::everything_recent;
            check_case("everything is recent", c, seed, stream);
            c.standing = Standing::free_pages;
            c.all_pinned = true;
            check_case("everything is pinned", c, seed, stream);
            c.all_pinned = c.pins = false;
            c.share = 1.0f;
            check_case("everything fits", c, seed, stream);
            c.share = 0.0f;
            check_case("nothing fits", c, seed, stream);

            c = base;
            c.threshold = round == 0 ? 0.0f : rng.uniform() * rng.uniform() * 0.2f;
            check_case("pooled", c, seed, stream);
            c.coverage = rng.uniform();
            check_case("pooled with a coverage target", c, seed, stream);
            c = base;
            c.share = 0.9f;
            c.coverage = round == 0 ? 1.0f : 0.3f + 0.7f * rng.uniform();
            check_case("coverage target", c, seed, stream);
            c.pins = false;
            c.standing = Standing::free_pages;
            c.floor = rng.uniform();
            c.coverage *= rng.uniform();
            check_case("floor", c, seed, stream);
            c.coverage = 0.0f;
            c.share = 0.05f;
            c.floor = 1.0f;
            check_case("floor of one", c, seed, stream);

            c = base;
            c.reselect = 3;
            c.n_ubatch = static_cast<uint32_t>(seed);
            c.n_head_kv = 3;
            check_case("heads in turn", c, seed, stream);
            c.coverage = 0.6f;
            c.floor = 0.5f;
            c.n_ubatch += 1;
            check_case("heads in turn, coverage and floor", c, seed, stream);
            c.scans_all = true;
            check_case("all heads scan", c, seed, stream);

            c = base;
            c.n_tokens = 1 + static_cast<int>(seed % 4);
            c.n_streams = 1 + static_cast<int>(seed % 3);
            c.floor = 0.5f;
            c.reselect = 2;
            check_case("tokens and streams", c, seed, stream);
            c.feed = false;
            c.group = 11;
            check_case("a large group", c, seed, stream);
            check_visible(n_pages, seed, stream);
        }
    }
    Case large = {65536};
    large.n_head_kv = 1;
    large.group = 2;
    large.coverage = 0.97f;
    check_case("a million tokens", large, 1, stream);
    stream_destroy(stream);
    CHECK(n_lists_different * 100 <= n_lists_all, "%d of %d lists differ by rounding", n_lists_different, n_lists_all);
    std::printf("%d lists, %d differ by rounding\n", n_lists_all, n_lists_different);
    std::printf(test::failures == 0 ? "ok\n" : "%d failures\n", test::failures);
    return test::failures == 0 ? 0 : 1;
}
