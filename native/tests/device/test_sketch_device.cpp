// Checks the sketches that launch_store() builds, launch_sketch_scan(), and launch_store_scan(), which does both.
//
// Build: every byte of all streams' sketches, against the portable sketch_build() over the keys as they were stored; also of groups whose keys
// arrive with the launch that builds them.
// Scan, against the portable sketch_scan() and sketch_scan_keys(): the sums of products are the same integers, so that a top differs by
// no more than 2e-4 + 2^-20 of the largest logit that keys and query allow, and a share and a sum by 2^-7 of themselves beside that. What these are
// worth tests/host/test_sketch.cpp says.
#include "cuda/kernels/store_device.cu"
#define EDGEKV_SCAN_GRID 8  // so that a warp takes several groups in turn, as in a context of a million tokens
#include "cuda/kernels/sketch_scan_device.cu"

#include <numeric>

#include "sketch_memory.h"

using namespace edgekv;
using namespace test;

namespace {

double worst = 0.0;  // in units of what is allowed
long n_scanned = 0, n_open = 0, n_arrived = 0;

// ---- build -------------------------------------------------------------------------------------------------------------------

gpu::StoreArgs no_tokens(const SketchCase & c) {
    gpu::StoreArgs args = {};
    args.head_dim = c.head_dim;
    args.n_head_kv = c.n_head_kv;
    args.cells_per_stream = c.n_groups * kGroupCells;
    return args;
}

// Stale groups, and how many of them a launch is told to expect.
struct Stale {
    std::vector<gpu::StaleGroup> groups;
    int n_expected;
};

// `keys`: the address of a stream's keys, as they are behind the launch.
template <class Keys, class Launch>
void build(const SketchCase & c, const PlacedKeys & placed, const SketchInstance & in, Sketches & sketches, Stale of, gpu::StoreArgs args,
           Keys keys, Launch launch) {
    std::vector<gpu::StaleGroup> & stale = of.groups;
    const int n_stale = static_cast<int>(stale.size());
    const DeviceArray<int> count(std::vector<int>{n_stale});
    stale.push_back({0, 1 << 20, ~uint64_t{0}});  // behind the end: must not be looked at
    const DeviceArray<gpu::StaleGroup> list(stale);
    args.build = {sketches.array(c), placed.at(c, in), list.data(), count.data(), of.n_expected, {}};
    launch(args);  // and waits
    const SketchKernels & cpu = *sketch_kernels("portable");
    for (int i = 0; i < n_stale; ++i) {
        for (int h = 0; h < c.n_head_kv; ++h) {
            cpu.build(sketches.sketch(c, stale[i].stream), sketches.layout, keys(stale[i].stream), h, stale[i].group, stale[i].valid);
        }
    }
    const std::vector<char> got = sketches.data.get();
    for (size_t i = 0; i < got.size(); ++i) {
        if (!expect_equal(c, "byte of the sketches", got[i], sketches.want[i])) {
            const size_t at = i % sketches.stream_bytes % sketches.layout.head_bytes;
            std::printf("first difference: byte %zu of a head, whose parameters begin at %zu\n", at, sketches.layout.params_offset);
            break;
        }
    }
}

void build(const SketchCase & c, const SketchInstance & in, const PlacedKeys & placed, Sketches & sketches, const std::vector<gpu::StaleGroup> & stale,
           int n_expected, gpu::Stream stream) {
    build(c, placed, in, sketches, {stale, n_expected}, no_tokens(c), [&](int s) { return in.keys(c, s); },
          [&](const gpu::StoreArgs & args) {
              gpu::launch_store(args, stream);
              must(gpu::stream_sync(stream) && gpu::check());
          });
}

// ---- scan --------------------------------------------------------------------------------------------------------------------

constexpr float kUnwritten = 12345.0f;

// Shares of all streams, tokens and heads, which were not written yet.
struct ScanOut {
    size_t cell_stride, group_stride;
    std::vector<uint16_t> cells;
    std::vector<float> tops, sums;

    ScanOut(const SketchCase & c, size_t n_queries)
        : cell_stride(static_cast<size_t>(c.n_groups) * kGroupCells + (c.partial ? 64 : 0)), group_stride(c.n_groups + (c.partial ? 3 : 0)),
          cells(cell_stride * n_queries, kUntouched), tops(group_stride * n_queries, kUnwritten), sums(tops) {}
    Shares from(size_t query) {
        return {cells.data() + query * cell_stride, tops.data() + query * group_stride, sums.data() + query * group_stride, cell_stride, group_stride};
    }
};

// A scan of the streams from first_stream on, in the device's memory.
struct Scan {
    const SketchCase & c;
    const SketchInstance & in;
    const PlacedKeys & placed;
    const int n_groups, first_stream;
    ScanOut out;
    const DeviceArray<float> q, tops, sums;
    const DeviceArray<Sight> sight;
    const DeviceArray<uint16_t> cells;

    Scan(const SketchCase & c, const SketchInstance & in, const PlacedKeys & placed, int n_groups, int first_stream)
        : c(c), in(in), placed(placed), n_groups(n_groups), first_stream(first_stream),
          out(c, static_cast<size_t>(c.n_streams) * c.n_queries() * c.n_head_kv), q(in.q), tops(out.tops), sums(out.sums), sight(in.sight),
          cells(out.cells) {}

    gpu::SketchScanArgs args(const Sketches & sketches) const {
        const size_t first = static_cast<size_t>(first_stream), token = first * c.n_tokens, query = token * c.group * c.n_head_kv;
        gpu::SketchScanArgs args{};
        args.sketches = sketches.array(c);
        args.sketches.data += first * sketches.stream_bytes;
        args.home = placed.at(c, in);
        args.home.k.data += first * in.stride_stream;
        args.home.arena.slots += first * placed.pages_per_stream;
        args.open = placed.open.data() + first * c.n_groups;
        args.n_streams = c.n_streams - first_stream;
        args.n_tokens = c.n_tokens;
        args.group = c.group;
        args.n_groups = n_groups;
        args.q = {reinterpret_cast<const char *>(q.data()) + token * in.q_stride_token, in.q_stride_token, in.q_stride_head};
        args.scale = c.scale;
        args.softcap = c.softcap;
        args.sight = sight.data() + token * in.sight_stride;
        args.sight_stride = in.sight_stride;
        args.out = {cells.data() + query * out.cell_stride, tops.data() + query * out.group_stride, sums.data() + query * out.group_stride,
                    out.cell_stride, out.group_stride};
        return args;
    }
    const ScanOut & get() {
        out.cells = cells.get();
        out.tops = tops.get();
        out.sums = sums.get();
        return out;
    }
};

// `in`: with the keys as they are behind the launch.
void compare(const SketchCase & c, const SketchInstance & in, const PlacedKeys & placed, Sketches & sketches, Scan & scan) {
    const ScanOut & got = scan.get();
    const int n_groups = scan.n_groups;
    ScanOut want(c, static_cast<size_t>(c.n_streams) * c.n_queries() * c.n_head_kv);
    const SketchKernels & cpu = *sketch_kernels("portable");
    std::vector<char> prepared(sketch_query_bytes(c.head_dim, c.group));
    const double limit = 2e-4 + 0x1p-20 * in.largest_logit;
    size_t first = static_cast<size_t>(scan.first_stream) * c.n_queries() * c.n_head_kv;
    for (int s = scan.first_stream; s < c.n_streams; ++s) {
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int h = 0; h < c.n_head_kv; ++h, first += static_cast<size_t>(c.group)) {
                const SketchQuery query = in.query(c, s, h, t, 1);
                const auto by_keys = [&](int group) {  // also where the token sees a part of the group
                    const uint64_t visible = query.sight[group].visible;
                    return placed.is_open[s * c.n_groups + group] != 0 || (visible != 0 && ~visible != 0);
                };
                cpu.prepare(c.head_dim, sketches.layout.padded, query, prepared.data());
                for (int group = 0; group < n_groups; ++group) {
                    if (by_keys(group)) {
                        cpu.scan_keys(in.keys(c, s), c.head_dim, query, h, group, want.from(first));
                    } else {
                        cpu.scan(sketches.sketch(c, s), sketches.layout, query, prepared.data(), h, group, 1, want.from(first));
                    }
                }
                for (int g = 0; g < c.group; ++g) {
                    for (size_t i = 0; i < got.group_stride; ++i) {
                        const size_t at = (first + g) * got.group_stride + i;
                        const bool written = want.tops[at] != kUnwritten && want.tops[at] != -kInf;
                        if (!written) {
                            expect_equal(c, "top, against the CPU", got.tops[at], want.tops[at]);
                            expect_equal(c, "sum, against the CPU", got.sums[at], want.sums[at]);
                            continue;
                        }
                        expect_near(c, "top, against the CPU", got.tops[at], want.tops[at], limit, &worst);
                        expect_near(c, "sum, against the CPU", got.sums[at], want.sums[at], (0x1p-7 + 2 * limit) * want.sums[at]);
                        (by_keys(static_cast<int>(i)) ? n_open : n_scanned) += 1;
                    }
                }
            }
        }
    }
    for (size_t i = 0; i < want.cells.size(); ++i) {
        const uint16_t x = got.cells[i], y = want.cells[i];
        const float a = from_upper_half(x), b = from_upper_half(y);
        expect(x == y || (y != kUntouched && std::fabs(a - b) <= (0x1p-7 + 2 * limit) * b + 1e-30f), c, "share, against the CPU", a, b);
    }
}

void check_scan(const SketchCase & c, const SketchInstance & in, const PlacedKeys & placed, Sketches & sketches, int n_groups, gpu::Stream stream) {
    Scan scan(c, in, placed, n_groups, 0);
    gpu::launch_sketch_scan(scan.args(sketches), stream);
    must(gpu::stream_sync(stream) && gpu::check());
    compare(c, in, placed, sketches, scan);
}

// ---- both ----------------------------------------------------------------------------------------------------------------------

// Keys of some of the groups, and of others, arrive with the launch. What lay in their cells before is overwritten. `scans`: the launch scans too, and keys
// arrive only in groups that are open or built.
void build_arriving(const SketchCase & c, const SketchInstance & in, const PlacedKeys & placed, Sketches & sketches,
                    const std::vector<gpu::StaleGroup> & stale, bool scans, Random & rng, gpu::Stream stream) {
    std::vector<int64_t> cells(static_cast<size_t>(c.n_streams) * c.n_groups * kGroupCells);
    std::iota(cells.begin(), cells.end(), 0);
    rng.shuffle(cells);
    if (scans) {
        std::vector<int32_t> changes = placed.is_open;
        for (const gpu::StaleGroup & group : stale) {
            changes[group.stream * c.n_groups + group.group] = 1;
        }
        cells.erase(std::remove_if(cells.begin(), cells.end(), [&](int64_t cell) { return changes[cell / kGroupCells] == 0; }), cells.end());
    }
    if (!rng.one_of(3)) {
        cells.resize(std::min<size_t>(cells.size(), 1 + rng.next() % 20));
    }
    if (cells.empty()) {
        return;
    }
    const size_t width = static_cast<size_t>(c.n_head_kv) * c.head_dim;
    std::vector<float> x(cells.size() * width);
    std::generate(x.begin(), x.end(), [&] { return 3.0f * rng.normal() + 1.0f; });
    const float largest = std::fabs(*std::max_element(x.begin(), x.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
    const DeviceArray<float> src(x);
    const DeviceArray<int64_t> rows(cells);
    const DeviceArray<char> values(in.k.size(), true);

    gpu::StoreArgs args = no_tokens(c);
    args.n_tokens = static_cast<int>(cells.size());
    args.k = {{reinterpret_cast<const char *>(src.data()), width * sizeof(float), c.head_dim * sizeof(float)}, rows.data(), c.type,
              {placed.home.data(), in.stride_cell, in.stride_head}, {}};
    args.v = args.k;
    args.v.home.data = values.data();
    args.arena = placed.page_slots(c, in);
    SketchInstance now = in;  // as it is behind the launch
    for (int i = 0; i < c.n_streams * c.n_head_kv * c.n_queries(); ++i) {
        const float * row = in.query_row(c, i / (c.n_head_kv * c.n_queries()), i / c.n_queries() % c.n_head_kv, i % c.n_queries());
        double sum = 0.0;
        for (int d = 0; d < c.head_dim; ++d) {
            sum += std::fabs(static_cast<double>(row[d]) * c.scale);
        }
        now.largest_logit = std::max(now.largest_logit, 1.25 * sum * largest);
    }
    Scan scan(c, in, placed, 1 + rng.below(c.n_groups), rng.below(c.n_streams));
    build(c, placed, in, sketches, {stale, 1}, args, [&](int s) { return now.keys(c, s); }, [&](const gpu::StoreArgs & all) {
        if (scans) {
            gpu::launch_store_scan(all, scan.args(sketches), scan.first_stream, stream);
        } else {
            gpu::launch_store(all, stream);
        }
        must(gpu::stream_sync(stream) && gpu::check());
        const std::vector<char> home = placed.home.get();
        for (const int64_t cell : cells) {
            for (int h = 0; h < c.n_head_kv; ++h) {
                const size_t at = static_cast<size_t>(cell) * in.stride_cell + h * in.stride_head;
                std::copy_n(home.data() + at, in.key_bytes, now.k.data() + at);
            }
        }
    });
    if (scans) {
        compare(c, now, placed, sketches, scan);
    }
    n_arrived += static_cast<long>(cells.size());
}

// ---- cases -------------------------------------------------------------------------------------------------------------------

// All but open groups, whose sketches are not to be looked at.
std::vector<gpu::StaleGroup> all_stale(const SketchCase & c, const SketchInstance & in, const PlacedKeys & placed, Random & rng) {
    std::vector<gpu::StaleGroup> stale;
    for (int i = 0; i < c.n_streams * c.n_groups; ++i) {
        if (placed.is_open[i] == 0) {
            stale.push_back({i / c.n_groups, i % c.n_groups, in.valid[i]});
        }
    }
    rng.shuffle(stale);
    return stale;
}

// A step that stores, builds and scans in one launch.
void check_together(const SketchCase & c, const SketchInstance & in, Random & rng, gpu::Stream stream) {
    const PlacedKeys placed(c, in, rng);
    Sketches sketches(c, rng);
    std::vector<gpu::StaleGroup> stale = all_stale(c, in, placed, rng);
    build(c, in, placed, sketches, stale, static_cast<int>(stale.size()), stream);
    stale.resize(static_cast<size_t>(rng.below(static_cast<int>(stale.size()) + 1)));
    build_arriving(c, in, placed, sketches, stale, true, rng, stream);
}

void check_case(const SketchCase & c, uint64_t seed, gpu::Stream stream) {
    Random rng(seed + 77);
    const SketchInstance in(c, seed);
    const PlacedKeys placed(c, in, rng);
    Sketches sketches(c, rng);
    const std::vector<gpu::StaleGroup> stale = all_stale(c, in, placed, rng);
    build(c, in, placed, sketches, {}, 1, stream);
    build(c, in, placed, sketches, stale, rng.below(static_cast<int>(stale.size()) + 1), stream);
    check_scan(c, in, placed, sketches, c.n_groups, stream);
    check_scan(c, in, placed, sketches, 1 + rng.below(c.n_groups), stream);
    if (!stale.empty()) {  // one group, which becomes empty or full
        gpu::StaleGroup turned = stale[0];
        turned.valid = turned.valid ? 0 : ~uint64_t{0};
        if (turned.valid == 0 || !c.partial) {
            build(c, in, placed, sketches, {turned}, 1, stream);
        }
        build_arriving(c, in, placed, sketches, stale, false, rng, stream);
    }
    check_together(c, in, rng, stream);
}

void check_all() {
    const int dims[] = {64, 80, 96, 128, 256, 72, 112, 192};
    const int groups[] = {1, 2, 3, 4, 5, 7, 8, 16};
    const int tokens[] = {1, 1, 1, 2, 3, 5, 16};
    const int n_groups[] = {1, 2, 3, 5, 9, 17};
    const float softcaps[] = {0.0f, 0.0f, 0.0f, 30.0f, 2.0f};
    const TestStream stream;
    Random rng(11);
    // First, because few others need some of the barriers, and whoever leaves one out does not wait for these: more groups than a launch's warps take at
    // once, and a block that builds and scans several groups whose keys lie where queries did.
    check_case({64, 1, 1, 70, 2, 1, CellType::f16, KeyData::normal, 0.125f, 0.0f, false, true, false, true}, 1000, stream);
    check_case({256, 2, 1, 9, 5, 1, CellType::q8_0, KeyData::negative_zero, 0.0625f, 0.0f, false, true, false, true}, 91, stream);
    uint64_t n = 0;
    for (int dim : dims) {
        for (int type = 0; type < kNumCellTypes; ++type) {
            if (!edgekv::holds_row(kCellTypes[type], dim)) {
                continue;
            }
            for (int i = 0; i < 8; ++i, ++n) {
                SketchCase c{};
                c.head_dim = dim;
                c.type = kCellTypes[type];
                c.n_groups = rng.pick(n_groups);
                c.group = rng.pick(groups);
                c.n_tokens = c.n_groups > 5 ? 1 : rng.pick(tokens);
                c.n_streams = c.n_tokens > 3 || c.n_groups > 5 ? 1 : 1 + rng.below(3);
                c.data = static_cast<KeyData>((i + dim / 16) % static_cast<int>(KeyData::count));
                c.n_head_kv = c.n_groups > 9 || c.n_tokens > 3 ? 1 : 1 + rng.below(2);
                c.scale = (rng.one_of(5) ? -1.0f : 1.0f) / std::sqrt(static_cast<float>(dim));
                c.softcap = rng.pick(softcaps);
                c.partly_seen = c.device = true;
                c.partial = rng.one_of(2);
                c.arena = rng.one_of(2);
                if (i % (kFew ? 8 : 3) == 0) {
                    check_case(c, n, stream);
                }
            }
        }
    }
    std::printf("%llu cases, %ld keys arrived, %ld groups from sketches and %ld from keys; largest difference %.3f of what is allowed\n",
                static_cast<unsigned long long>(n), n_arrived, n_scanned, n_open, worst);
}

}  // namespace

int main() {
    gpu::Device device;
    if (!has_device(device)) {
        return 77;
    }
    check_all();
    CHECK(n_open > 0 && n_scanned > 0, "%ld from keys, %ld from sketches", n_open, n_scanned);
    return finish();
}
