// Steps of selection to try, what select_pages() makes of them, and when a list may differ from it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "attend_cases.h"
#include "select.h"

namespace cases {

using namespace edgekv;

constexpr float kInf = std::numeric_limits<float>::infinity();
// (21 + group 11 + 87 below the maximum + ln 6660 + 3.5 * sqrt(6660 / 8): the CPU's sums, six standard deviations) * 2^-24,
// rounded up
constexpr double kRounding = 1.5e-5;

enum class Standing { mixed, free_pages, nothing, everything_recent };
enum class Estimates { random, none, half_empty, empty, equal };

struct Case {
    int n_pages;
    int n_streams = 1, n_tokens = 1, n_head_kv = 2, group = 4, per_page = 1;
    Standing standing = Standing::mixed;
    Estimates estimates = Estimates::random;
    float sink = 3.0f;  // about so high
    bool sinks = false, ties = false, pins = true, all_pinned = false, priority = true;
    float share = 0.2f;
    int tokens = 0, min_tokens = 0;
    float threshold = -1.0f;  // >= 0: pooled
    float coverage = 0.0f, floor = 0.0f, blend = 0.5f;
    bool feed = true, count = true;
    int reselect = 1, dense_heads = 0;
    uint32_t n_ubatch = 5;
    bool scans_all = false;
};

template <class T>
char * aligned(std::vector<T> & raw) {
    return reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(raw.data()) + 63) / 64 * 64);
}

// What a step of one layer needs, on the host; everything by the layout of SelectBatch.
struct Instance {
    const Case & c;
    int first_stream, pages_per_stream, n_pages_all, page_tokens;
    size_t n_queries, n_lists, standing_stride, estimate_stride, list_stride;
    std::vector<float> estimates, sinks, standing, priority, known, mass_max, mass_sum;
    std::vector<uint8_t> pinned;

    Instance(const Case & c, uint64_t seed) : c(c) {
        cases::Random rng(seed);
        first_stream = static_cast<int>(seed % 2);
        pages_per_stream = c.n_pages + static_cast<int>(seed % 4);
        n_pages_all = pages_per_stream * (first_stream + c.n_streams + 1);
        page_tokens = 16 * c.per_page;
        n_queries = static_cast<size_t>(c.n_streams) * c.n_tokens;
        n_lists = n_queries * c.n_head_kv;
        standing_stride = static_cast<size_t>(pages_per_stream) + 16;
        estimate_stride = (static_cast<size_t>(c.n_pages) * c.per_page + 15) / 16 * 16;
        list_stride = static_cast<size_t>(c.n_pages) + 3;
        const size_t n_entries = static_cast<size_t>(c.n_head_kv) * n_pages_all;

        for (size_t i = 0; i < n_lists * c.group * estimate_stride; ++i) {
            const bool empty = c.estimates == Estimates::empty || (c.estimates == Estimates::half_empty && rng.next() % 2 == 0);
            estimates.push_back(empty ? -kInf : c.estimates == Estimates::equal ? -3.0f : 3.0f * rng.normal() - 2.0f);
        }
        for (int i = 0; i < c.n_head_kv * c.group; ++i) {
            sinks.push_back(2.0f * rng.normal() + c.sink);
        }
        for (size_t query = 0; query < n_queries; ++query) {
            int n_visible = 0;
            for (size_t page = 0; page < standing_stride; ++page) {
                const uint64_t kind = rng.next() % 8;
                float x = kind == 0 ? -kInf : kind == 1 ? kInf : 0.0f;
                x = c.standing == Standing::nothing      ? -kInf
                    : c.standing == Standing::free_pages ? 0.0f
                    : c.standing == Standing::mixed      ? x
                                                         : kInf;
                n_visible += static_cast<int>(page) < c.n_pages && x >= 0.0f;
                standing.push_back(static_cast<int>(page) == pages_per_stream ? static_cast<float>(n_visible) : x);
            }
        }
        for (size_t i = 0; i < n_entries; ++i) {
            priority.push_back(c.ties ? std::round(rng.uniform() * 4.0f) * 0.125f : rng.uniform() * 0.2f);
            pinned.push_back(c.all_pinned || (c.pins && rng.next() % 10 == 0));
            known.push_back(rng.uniform() * 0.1f);
            mass_max.push_back(rng.uniform());
            mass_sum.push_back(rng.uniform());
        }
    }

    bool estimated() const { return c.estimates != Estimates::none; }
    bool keeps() const { return estimated() && c.reselect > 1 && n_queries == 1; }
    bool scans(int head) const {
        return estimated() && (!keeps() || c.scans_all ||
                               (c.n_ubatch + kFirstTurn + static_cast<uint32_t>(head)) % static_cast<uint32_t>(c.reselect) == 0);
    }
    static constexpr uint32_t kFirstTurn = 6;

    size_t entry(int stream, int head) const {
        return static_cast<size_t>(head) * n_pages_all + static_cast<size_t>(first_stream + stream) * pages_per_stream;
    }
};

// The CPU's selection of all lists, and what it leaves.
struct Expected {
    std::vector<std::vector<int32_t>> pages;
    std::vector<SelectResult> results;
    std::vector<float> covered, known, mass_max, mass_sum;
    std::vector<uint32_t> buckets = std::vector<uint32_t>(kValueBuckets);
    double n_budget = 0.0, n_pinned = 0.0;

    explicit Expected(const Instance & in)
        : covered(in.n_lists * in.c.group), known(in.known), mass_max(in.mass_max), mass_sum(in.mass_sum) {
        const Case & c = in.c;
        std::vector<char> raw(select_scratch_bytes(c.n_pages, c.per_page, c.group) + 64);
        for (size_t list = 0; list < in.n_lists; ++list) {
            const int head = static_cast<int>(list) % c.n_head_kv;
            const size_t query = list / c.n_head_kv;
            const size_t at = in.entry(static_cast<int>(query) / c.n_tokens, head);
            const float * standing = in.standing.data() + query * in.standing_stride;
            const int n_visible = static_cast<int>(standing[in.pages_per_stream]);
            const int wanted = c.tokens > 0 ? (c.tokens + in.page_tokens - 1) / in.page_tokens
                                            : static_cast<int>(std::lround(c.share * static_cast<float>(n_visible)));
            const int budget = std::min(n_visible, std::max(wanted, c.min_tokens / in.page_tokens));
            const bool scans = in.scans(head);

            SelectProblem p{};
            std::vector<int32_t> out(static_cast<size_t>(c.n_pages));
            p.n_pages = c.n_pages;
            p.per_page = c.per_page;
            p.group = c.group;
            p.estimates = scans ? in.estimates.data() + list * c.group * in.estimate_stride : nullptr;
            p.stride = in.estimate_stride;
            p.known = in.estimated() && !scans ? known.data() + at : nullptr;
            p.sinks = c.sinks ? in.sinks.data() + head * c.group : nullptr;
            p.standing = standing;
            p.priority = c.priority ? in.priority.data() + at : nullptr;
            p.pinned = in.pinned.data() + at;
            p.n_budget = budget;
            p.threshold = c.threshold;
            p.coverage = c.coverage;
            p.floor = c.floor;
            p.blend = c.blend;
            p.pages = out.data();
            p.covered = covered.data() + list * c.group;
            p.mass = scans && in.keeps() ? known.data() + at : nullptr;
            p.mass_max = c.feed ? mass_max.data() + at : nullptr;
            p.mass_sum = c.feed ? mass_sum.data() + at : nullptr;
            p.buckets = c.count ? buckets.data() : nullptr;
            p.scratch = aligned(raw);
            results.push_back(select_pages(p, Isa::portable));
            out.resize(static_cast<size_t>(results.back().n_taken));
            pages.push_back(out);
            n_budget += c.count ? budget - (head == 0 ? c.dense_heads * (results.back().n_visible - budget) : 0) : 0;
            n_pinned += c.count ? results.back().n_pinned : 0;
        }
    }
};

// Values and masses of a list's pages in double precision.
inline void value_pages(const Instance & in, size_t list, std::vector<double> & value, std::vector<double> & mass) {
    const Case & c = in.c;
    const int head = static_cast<int>(list) % c.n_head_kv;
    const size_t query = list / c.n_head_kv;
    const size_t at = in.entry(static_cast<int>(query) / c.n_tokens, head);
    const float * standing = in.standing.data() + query * in.standing_stride;
    mass.assign(static_cast<size_t>(c.n_pages), 0.0);
    value = mass;
    for (int g = 0; in.scans(head) && g < c.group; ++g) {
        const float * from = in.estimates.data() + (list * c.group + g) * in.estimate_stride;
        double top = -kInf, total = 0.0;
        for (int strip = 0; strip < c.n_pages * c.per_page; ++strip) {
            top = standing[strip / c.per_page] >= 0.0f ? std::max<double>(top, from[strip]) : top;
        }
        if (top == -kInf) {
            continue;
        }
        for (int strip = 0; strip < c.n_pages * c.per_page; ++strip) {
            total += standing[strip / c.per_page] >= 0.0f ? std::exp(from[strip] - top) : 0.0;
        }
        total += c.sinks ? std::exp(in.sinks[head * c.group + g] - top) : 0.0;
        for (int strip = 0; strip < c.n_pages * c.per_page; ++strip) {
            mass[strip / c.per_page] += standing[strip / c.per_page] >= 0.0f ? std::exp(from[strip] - top) / total : 0.0;
        }
    }
    for (int page = 0; page < c.n_pages; ++page) {
        if (in.estimated() && !in.scans(head)) {
            mass[page] = in.known[at + page];
        }
        const double prior = c.priority ? in.priority[at + page] : 0.0;
        value[page] = in.estimated() ? (1.0 - c.blend) * mass[page] + c.blend * prior : prior;
    }
}

// Whether two lists differ by no more than rounding can do.
inline bool rounding_decides(const Instance & in, size_t list, const std::vector<int32_t> & a, const std::vector<int32_t> & b) {
    std::vector<int32_t> different;
    std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(different));
    std::vector<double> value, mass;
    value_pages(in, list, value, mass);
    double low = kInf, high = 0.0, moved = 0.0;
    for (int32_t page : different) {
        low = std::min(low, value[page]);
        high = std::max(high, value[page]);
        moved += mass[page];
    }
    const bool by_value = high - low <= kRounding * high && high != low;
    const bool by_threshold =
        in.c.threshold > 0.0f && std::fabs(high - in.c.threshold) <= kRounding * high && high - low <= kRounding * high;
    return by_value || by_threshold ||
           (in.c.coverage > 0.0f && moved <= kRounding * std::accumulate(mass.begin(), mass.end(), 0.0));
}

}  // namespace cases
