// Checks launch_sketch_build() and launch_sketch_scan().
//
// Build: every byte of all streams' sketches, against the portable sketch_build().
// Scan, against the portable sketch_scan() and sketch_scan_keys(): the sums of products are the same integers, so that a top differs by
// no more than 2e-4 + 2^-20 of the largest logit that keys and query allow, and a share and a sum by 2^-7 of themselves beside that. Against
// sketch_reference(): the worst case that kernels/sketch/sketch_reference.cpp states.
#include "cuda/kernels/sketch_build_device.cu"
#include "cuda/kernels/sketch_scan_device.cu"

#include "sketch_device_cases.h"

using namespace edgekv;

namespace {

int failures = 0;
double worst_cpu = 0.0, worst_reference = 0.0;  // in units of what is allowed
long n_scanned = 0, n_open = 0;

void fail(const Case & c, const char * what, double got, double want) {
    if (++failures <= 20) {
        std::printf("FAIL %s: got %.9g, want %.9g [%s]\n", what, got, want, c.name().c_str());
    }
}

struct Sketches {
    SketchLayout layout;
    size_t stream_bytes;
    std::vector<char> want;
    DeviceArray<char> data;

    Sketches(const Case & c, cases::Random & rng)
        : layout(sketch_layout(c.head_dim, c.n_groups)),
          stream_bytes(sketch_bytes(SketchKind::b3, c.head_dim, c.n_head_kv, c.n_groups) + (c.partial ? 128 : 0)),
          want(filled(stream_bytes * c.n_streams, rng)), data(want) {}

    // what was there before must not matter; between the heads and the streams it must stay
    static std::vector<char> filled(size_t n, cases::Random & rng) {
        std::vector<char> bytes(n);
        for (char & b : bytes) {
            b = static_cast<char>(rng.next() >> 30);
        }
        return bytes;
    }
    Sketch sketch(const Case & c, int stream) {
        return {SketchKind::b3, c.head_dim, c.n_head_kv, c.n_groups, want.data() + stream * stream_bytes};
    }
    gpu::SketchArray array(const Case & c) const { return {c.head_dim, c.n_head_kv, c.n_groups, data.data, stream_bytes}; }
};

// Keys on the device's side.
struct Placed {
    Pinned home;
    DeviceArray<char> arena;
    DeviceArray<int32_t> slots;

    explicit Placed(const Instance & in) : home(in.home.size()), arena(in.arena), slots(in.slots) {
        std::memcpy(home.data, in.home.data(), in.home.size());
    }
    gpu::SketchHome at(const Case & c, const Instance & in) const {
        return {c.type, home.data, in.stride_cell, in.stride_head, in.stride_stream, false, c.arena ? arena.data : nullptr, in.slot_bytes,
                slots.data, static_cast<size_t>(c.n_streams) * in.pages_per_stream, Instance::kPageTokens, in.pages_per_stream};
    }
};

void must_run(const Case & c, gpu::Stream stream) {
    if (!gpu::stream_sync(stream) || !gpu::check()) {
        fail(c, gpu::last_error(), 0, 0);
    }
}

// ---- build -------------------------------------------------------------------------------------------------------------------

void build(const Case & c, const Instance & in, const Placed & placed, Sketches & sketches, std::vector<gpu::StaleGroup> stale, int n_expected,
           gpu::Stream stream) {
    const int n_stale = static_cast<int>(stale.size());
    const DeviceArray<int> count({n_stale});
    stale.push_back({0, 1 << 20, ~uint64_t{0}});  // behind the end: must not be looked at
    const DeviceArray<gpu::StaleGroup> list(stale);
    gpu::launch_sketch_build({sketches.array(c), placed.at(c, in), list.data, count.data, n_expected}, stream);
    must_run(c, stream);
    const SketchKernels & cpu = *sketch_kernels("portable");
    for (int i = 0; i < n_stale; ++i) {
        for (int h = 0; h < c.n_head_kv; ++h) {
            cpu.build(sketches.sketch(c, stale[i].stream), sketches.layout, in.keys(c, stale[i].stream), h, stale[i].group, stale[i].valid);
        }
    }
    const std::vector<char> got = sketches.data.read();
    for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] != sketches.want[i]) {
            const size_t at = i % sketches.stream_bytes % sketches.layout.head_bytes;
            std::printf("first difference: byte %zu of a head, whose parameters begin at %zu\n", at, sketches.layout.params_offset);
            fail(c, "byte of the sketches", got[i], sketches.want[i]);
            break;
        }
    }
}

// ---- scan --------------------------------------------------------------------------------------------------------------------

// The largest logit of the group, as the specification has it, and how far a kernel may be off.
double reference_top(const Case & c, const Instance & in, int stream, int head, int group, uint64_t visible, const float * q, double * allowed) {
    const uint64_t valid = in.valid[stream * c.n_groups + group];
    double amax = 0.0, top_step = 0.0, top_low = 0.0, largest = 0.0;
    std::vector<double> step, low;
    for (int i = 0; i < c.head_dim; ++i) {
        double least = kInf, most = -kInf;
        for (int j = 0; j < kGroupCells; ++j) {
            if (valid >> j & 1) {
                const char * row = in.true_home.data() + stream * in.stride_stream + (group * kGroupCells + j) * in.stride_cell + head * in.stride_head;
                const double k = cases::element(c.type, row, i);
                least = std::fmin(least, k);
                most = std::fmax(most, k);
            }
        }
        step.push_back((most - least) / 7);
        low.push_back(std::fabs(least));
        top_step = std::fmax(top_step, step.back());
        top_low = std::fmax(top_low, low.back());
        amax = std::fmax(amax, std::fabs(static_cast<double>(q[i]) * c.scale));
    }
    const double step_scale = top_step / 255 * 1.0001, low_scale = top_low / 127 * 1.0001;
    const double fine = amax / kFineMax, coarse = amax / kCoarseMax;
    double error = 0.0;
    for (int i = 0; i < c.head_dim; ++i) {
        const double x = std::fabs(static_cast<double>(q[i]) * c.scale);
        error += x * (step[i] + 3.5 * step_scale + low_scale) + 7 * 0.504 * fine * 32768 * step_scale + coarse * 0.501 * (low[i] + low_scale);
        largest += x * (low[i] + 7 * step[i]);
    }
    // a query that cannot be told from zero is taken for it
    *allowed = error + (amax > 1e-30 ? 0x1p-20 : 1.0) * largest + c.softcap * 0x1p-16;
    double top = -kInf;
    for (int j = 0; j < kGroupCells; ++j) {
        if (visible >> j & 1) {
            top = std::fmax(top, sketch_reference(in.keys(c, stream), c.head_dim, head, group * kGroupCells + j, valid, q, c.scale, c.softcap));
        }
    }
    return top;
}

float from_upper_half(uint16_t x) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

constexpr uint16_t kUntouched = 0x7fc1;
constexpr float kUnwritten = 12345.0f;

void check_scan(const Case & c, const Instance & in, const Placed & placed, Sketches & sketches, int n_groups, gpu::Stream stream) {
    const size_t cell_stride = static_cast<size_t>(c.n_groups) * kGroupCells + (c.partial ? 64 : 0), group_stride = c.n_groups + (c.partial ? 3 : 0);
    const size_t n_rows = static_cast<size_t>(c.n_streams) * c.n_tokens * c.n_head_kv * c.group;
    const DeviceArray<float> q(in.q);
    const DeviceArray<int32_t> open(in.open);
    const DeviceArray<Sight> sight(in.sight);
    const DeviceArray<uint16_t> cells(std::vector<uint16_t>(cell_stride * n_rows, kUntouched));
    const DeviceArray<float> tops(std::vector<float>(group_stride * n_rows, kUnwritten)), sums(std::vector<float>(group_stride * n_rows, kUnwritten));
    gpu::SketchScanArgs args{};
    args.sketches = sketches.array(c);
    args.home = placed.at(c, in);
    args.open = open.data;
    args.n_streams = c.n_streams;
    args.n_tokens = c.n_tokens;
    args.group = c.group;
    args.n_groups = n_groups;
    args.q = reinterpret_cast<const char *>(q.data);
    args.q_stride_head = (c.head_dim + in.q_pad) * 4;
    args.q_stride_token = args.q_stride_head * c.n_head_kv * c.group;
    args.scale = c.scale;
    args.softcap = c.softcap;
    args.sight = sight.data;
    args.sight_stride = static_cast<size_t>(c.n_groups);
    args.out = {cells.data, tops.data, sums.data, cell_stride, group_stride};
    gpu::launch_sketch_scan(args, stream);
    must_run(c, stream);
    const std::vector<uint16_t> got_cells = cells.read();
    const std::vector<float> got_tops = tops.read(), got_sums = sums.read();

    const SketchKernels & cpu = *sketch_kernels("portable");
    std::vector<uint16_t> want_cells(cell_stride * c.group);
    std::vector<float> want_tops(group_stride * c.group), want_sums(group_stride * c.group);
    const Shares want = {want_cells.data(), want_tops.data(), want_sums.data(), cell_stride, group_stride};
    std::vector<char> prepared(sketch_query_bytes(c.head_dim, c.group));
    const double limit = 2e-4 + 0x1p-20 * in.largest_logit;
    size_t first_row = 0;
    for (int s = 0; s < c.n_streams; ++s) {
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int h = 0; h < c.n_head_kv; ++h, first_row += static_cast<size_t>(c.group)) {
                const size_t query_row = static_cast<size_t>(s) * c.n_tokens + t;
                const SketchQuery query{reinterpret_cast<const char *>(in.query(c, s, t, h * c.group)), 0, args.q_stride_head, 1, c.group, c.scale,
                                        c.softcap, in.sight.data() + query_row * c.n_groups, static_cast<size_t>(c.n_groups)};
                const auto by_keys = [&](int group) {  // also where the token sees a part of the group
                    const uint64_t visible = query.sight[group].visible;
                    return in.open[s * c.n_groups + group] != 0 || (visible != 0 && ~visible != 0);
                };
                std::fill(want_cells.begin(), want_cells.end(), kUntouched);
                std::fill(want_tops.begin(), want_tops.end(), kUnwritten);
                std::fill(want_sums.begin(), want_sums.end(), kUnwritten);
                cpu.prepare(c.head_dim, sketches.layout.padded, query, prepared.data());
                for (int group = 0; group < n_groups; ++group) {
                    if (by_keys(group)) {
                        cpu.scan_keys(in.keys(c, s), c.head_dim, query, h, group, want);
                    } else {
                        cpu.scan(sketches.sketch(c, s), sketches.layout, query, prepared.data(), h, group, 1, want);
                    }
                }
                for (int g = 0; g < c.group; ++g) {
                    for (size_t i = 0; i < group_stride; ++i) {
                        const float top = got_tops[(first_row + g) * group_stride + i], y = want_tops[g * group_stride + i];
                        const float sum = got_sums[(first_row + g) * group_stride + i], z = want_sums[g * group_stride + i];
                        const bool written = y != kUnwritten && y != -kInf;
                        if (written ? !(std::fabs(top - y) <= limit) : top != y) {
                            fail(c, "top, against the CPU", top, y);
                        }
                        if (written ? !(std::fabs(sum - z) <= (0x1p-7 + 2 * limit) * z) : sum != z) {
                            fail(c, "sum, against the CPU", sum, z);
                        }
                        worst_cpu = written ? std::max(worst_cpu, std::fabs(top - y) / limit) : worst_cpu;
                        if (!written || static_cast<int>(i) % 3 != 0) {
                            continue;
                        }
                        (by_keys(static_cast<int>(i)) ? n_open : n_scanned) += 1;
                        double allowed;
                        const float * row = in.query(c, s, t, h * c.group + g);
                        const double exact = reference_top(c, in, s, h, static_cast<int>(i), query.sight[i].visible, row, &allowed);
                        if (!(std::fabs(top - exact) <= allowed)) {
                            fail(c, "top, against the reference", top, exact);
                        }
                        worst_reference = std::max(worst_reference, std::fabs(top - exact) / allowed);
                    }
                    for (size_t i = 0; i < cell_stride; ++i) {
                        const uint16_t x = got_cells[(first_row + g) * cell_stride + i], y = want_cells[g * cell_stride + i];
                        const float a = from_upper_half(x), b = from_upper_half(y);
                        if (x != y && (y == kUntouched || !(std::fabs(a - b) <= (0x1p-7 + 2 * limit) * b + 1e-30f))) {
                            fail(c, "share, against the CPU", a, b);
                        }
                    }
                }
            }
        }
    }
}

// ---- cases -------------------------------------------------------------------------------------------------------------------

void check_case(const Case & c, uint64_t seed, gpu::Stream stream) {
    cases::Random rng(seed + 77);
    const Instance in(c, seed);
    const Placed placed(in);
    Sketches sketches(c, rng);
    std::vector<gpu::StaleGroup> stale;
    for (int i = 0; i < c.n_streams * c.n_groups; ++i) {
        if (in.open[i] == 0) {  // what an open group's sketch has is not to be looked at
            stale.push_back({i / c.n_groups, i % c.n_groups, in.valid[i]});
        }
    }
    for (size_t i = stale.size(); i > 1; --i) {
        std::swap(stale[i - 1], stale[rng.next() % i]);
    }
    build(c, in, placed, sketches, {}, 1, stream);
    build(c, in, placed, sketches, stale, static_cast<int>(rng.next() % (stale.size() + 1)), stream);
    check_scan(c, in, placed, sketches, c.n_groups, stream);
    check_scan(c, in, placed, sketches, 1 + static_cast<int>(rng.next() % static_cast<uint64_t>(c.n_groups)), stream);
    if (!stale.empty()) {  // one group, which becomes empty or full
        stale[0].valid = stale[0].valid ? 0 : ~uint64_t{0};
        if (stale[0].valid == 0 || !c.partial) {
            build(c, in, placed, sketches, {stale[0]}, 1, stream);
        }
    }
}

void check_all() {
    const int dims[] = {64, 80, 96, 128, 256, 72, 112, 192};
    const int groups[] = {1, 2, 3, 4, 5, 7, 8, 16};
    const int tokens[] = {1, 1, 1, 2, 3, 5, 16};
    const int n_groups[] = {1, 2, 3, 5, 9, 17};
    const float softcaps[] = {0.0f, 0.0f, 0.0f, 30.0f, 2.0f};
    gpu::Stream stream = nullptr;
    gpu::stream_create(&stream);
    cases::Random rng(11);
    uint64_t n = 0;
    for (int dim : dims) {
        for (int type = 0; type < 2; ++type) {
            if (type == 1 && dim % 32 != 0) {
                continue;
            }
            for (int i = 0; i < 8; ++i, ++n) {
                Case c{};
                c.head_dim = dim;
                c.type = static_cast<CellType>(type);
                c.n_groups = n_groups[rng.next() % 6];
                c.group = groups[rng.next() % 8];
                c.n_tokens = c.n_groups > 5 ? 1 : tokens[rng.next() % 7];
                c.n_streams = c.n_tokens > 3 || c.n_groups > 5 ? 1 : 1 + static_cast<int>(rng.next() % 3);
                c.data = static_cast<Data>((i + dim / 16) % static_cast<int>(Data::count));
                c.n_head_kv = c.n_groups > 9 || c.n_tokens > 3 ? 1 : 1 + static_cast<int>(rng.next() % 2);
                c.scale = (rng.next() % 5 == 0 ? -1.0f : 1.0f) / std::sqrt(static_cast<float>(dim));
                c.softcap = softcaps[rng.next() % 5];
                c.partial = rng.next() % 2 == 0;
                c.arena = rng.next() % 2 == 0;
                check_case(c, n, stream);
            }
        }
    }
    // more groups than a launch's warps take at once
    check_case({64, 1, 1, 70, 2, 1, CellType::f16, Data::normal, 0.125f, 0.0f, false, false}, n++, stream);
    gpu::stream_destroy(stream);
    std::printf("%llu cases, %ld groups from sketches and %ld from keys; largest difference from the CPU %.3f and from the reference %.3f of what "
                "is allowed\n", static_cast<unsigned long long>(n), n_scanned, n_open, worst_cpu, worst_reference);
}

}  // namespace

int main() {
    gpu::Device device;
    if (gpu::device_count() < 1 || !gpu::use_device(0) || !gpu::device(0, device)) {
        std::printf("no device: %s\n", gpu::last_error());
        return 77;
    }
    check_all();
    if (n_open == 0 || n_scanned == 0) {
        std::printf("FAIL: one of the two was never scanned\n");
        failures += 1;
    }
    std::printf(failures == 0 ? "ok\n" : "%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
