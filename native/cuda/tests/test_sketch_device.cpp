// Checks launch_sketch_build() and launch_sketch_scan().
//
// Build: every byte of all streams' sketches, against the portable sketch_build().
// Scan, against the portable sketch_scan(): the sums of products are the same integers, so an estimate differs by no more than
// two instruction sets of the CPU may differ from each other (native/tests/test_sketch.cpp): 2e-4 + 2^-21 of the largest logit
// that keys and query allow. Against sketch_reference(): the worst case that native/src/sketch_reference.cpp states; a box's bound
// is never below the largest logit.
#include "../sketch_build_device.cu"
#include "../sketch_scan_device.cu"

#include "sketch_device_cases.h"

using namespace edgekv;

namespace {

int failures = 0;
double worst_cpu = 0.0, worst_reference = 0.0;  // in units of what is allowed

void fail(const Case & c, const char * what, double got, double want) {
    if (++failures <= 20) {
        std::printf("FAIL %s: got %.9g, want %.9g [%s]\n", what, got, want, c.name().c_str());
    }
}

// ---- build -------------------------------------------------------------------------------------------------------------------

struct Sketches {
    SketchLayout layout;
    size_t stream_bytes;
    std::vector<char> want;
    DeviceArray<char> data;

    Sketches(const Case & c, cases::Random & rng)
        : layout(sketch_layout(c.kind, c.head_dim, c.n_strips)),
          stream_bytes(sketch_bytes(c.kind, c.head_dim, c.n_head_kv, c.n_strips) + (c.partial ? 128 : 0)),
          want(filled(stream_bytes * c.n_streams, rng)), data(want) {}

    // what was there before must not matter; past the last strip and between the streams it must stay
    static std::vector<char> filled(size_t n, cases::Random & rng) {
        std::vector<char> bytes(n);
        for (char & b : bytes) {
            b = static_cast<char>(rng.next() >> 30);
        }
        return bytes;
    }
    Sketch sketch(const Case & c, int stream) {
        return {c.kind, c.head_dim, c.n_head_kv, c.n_strips, want.data() + stream * stream_bytes};
    }
    gpu::SketchArray array(const Case & c) const {
        return {c.kind, c.head_dim, c.n_head_kv, c.n_strips, data.data, stream_bytes};
    }
};

void build(const Case & c, const Instance & in, Sketches & sketches, std::vector<gpu::StaleStrip> stale, int n_expected,
           gpu::Stream stream) {
    Pinned home(in.home.size());
    std::memcpy(home.data, in.home.data(), in.home.size());
    const DeviceArray<char> arena(in.arena);
    const DeviceArray<int32_t> slots(in.slots);
    const int n_stale = static_cast<int>(stale.size());
    const DeviceArray<int> count({n_stale});
    stale.push_back({0, 1 << 20, 0xffff});  // behind the end: must not be looked at
    const DeviceArray<gpu::StaleStrip> list(stale);

    gpu::SketchBuildArgs args{};
    args.sketches = sketches.array(c);
    args.k_type = c.type;
    args.k = home.data;
    args.stride_cell = in.stride_cell;
    args.stride_head = in.stride_head;
    args.stride_stream = in.stride_stream;
    args.stale = list.data;
    args.n_stale = count.data;
    args.n_expected = n_expected;
    if (c.arena) {
        args.arena = arena.data;
        args.slot_bytes = in.slot_bytes;
        args.slots = slots.data;
        args.slots_stride = static_cast<size_t>(c.n_streams) * in.pages_per_stream;
        args.page_tokens = Instance::kPageTokens;
        args.pages_per_stream = in.pages_per_stream;
    }
    gpu::launch_sketch_build(args, stream);
    if (!gpu::stream_sync(stream) || !gpu::check()) {
        fail(c, gpu::last_error(), 0, 0);
    }
    const SketchKernels & cpu = *sketch_kernels("portable");
    for (int i = 0; i < n_stale; ++i) {
        for (int h = 0; h < c.n_head_kv; ++h) {
            cpu.build(sketches.sketch(c, stale[i].stream), sketches.layout, in.keys(c, stale[i].stream), h, stale[i].strip,
                      stale[i].valid);
        }
    }
    const std::vector<char> got = sketches.data.read();
    for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] != sketches.want[i]) {
            const size_t at = i % sketches.stream_bytes % sketches.layout.block_bytes;
            std::printf("first difference: byte %zu of a block, strip %zu\n", at, at % 64 / 4);
            fail(c, "byte of the sketches", got[i], sketches.want[i]);
            break;
        }
    }
}

// ---- scan --------------------------------------------------------------------------------------------------------------------

// The error that a kernel may have against sketch_reference(), from what its bytes round.
double allowed(const Case & c, const Instance & in, int stream, int head, int strip, const float * q, double want, double * top) {
    std::vector<const char *> rows;
    const uint32_t valid = in.valid[stream * c.n_strips + strip];
    for (int j = 0; j < kSketchStripCells; ++j) {
        if (valid >> j & 1) {
            rows.push_back(in.true_home.data() + stream * in.stride_stream + (strip * kSketchStripCells + j) * in.stride_cell +
                           head * in.stride_head);
        }
    }
    const size_t given = rows.size();
    for (size_t i = 0; rows.size() < kSketchStripCells; ++i) {
        rows.push_back(rows[i % given]);
    }
    double amax = 0.0, top_step = 0.0, top_low = 0.0, largest = 0.0, reach = 0.0;
    std::vector<double> step, low, logit(kSketchStripCells);
    for (int i = 0; i < c.head_dim; ++i) {
        double least = kInf, most = -kInf, mean = 0.0, residual = 0.0;
        for (size_t j = 0; j < rows.size(); ++j) {
            const double k = element(c.type, rows[j], i);
            least = std::fmin(least, k);
            most = std::fmax(most, k);
            mean += k / kSketchStripCells;
            logit[j] += static_cast<double>(q[i]) * c.scale * k;
        }
        for (const char * row : rows) {
            residual += std::fabs(element(c.type, row, i) - mean) / kSketchStripCells;
        }
        step.push_back(c.kind == SketchKind::b2 ? (most - least) / 3 : 2 * residual);
        low.push_back(std::fabs(c.kind == SketchKind::b2 ? least : mean - residual));
        top_step = std::fmax(top_step, step.back());
        top_low = std::fmax(top_low, low.back());
        largest = std::fmax(largest, std::fmax(-least, most));
        reach += std::fmax(-least, most);
        amax = std::fmax(amax, std::fabs(static_cast<double>(q[i]) * c.scale));
    }
    *top = -kInf;
    for (double x : logit) {
        *top = std::fmax(*top, c.softcap != 0.0f ? c.softcap * std::tanh(x / c.softcap) : x);
    }
    const double step_scale = top_step / 255 * 1.0001, low_scale = (top_low + top_step / 100) / 127, box_scale = largest / 127;
    const double fine = amax / kFineMax, coarse = amax / kCoarseMax;
    double error = 0.0, total = 0.0;
    for (int i = 0; i < c.head_dim; ++i) {
        const double x = std::fabs(static_cast<double>(q[i]) * c.scale);
        if (c.kind == SketchKind::box) {
            error += x * box_scale * 1.001;
        } else {
            error += x * (step[i] + step_scale + low_scale / 2);
            error += (c.kind == SketchKind::b2 ? 3 : 1) * 0.504 * fine * 32768 * step_scale;
            error += coarse * 0.501 * (low[i] + low_scale);
        }
        total += x * (low[i] + 3 * step[i]);
    }
    error += 0x1p-20 * (total + std::fabs(want)) + c.softcap * 0x1p-16;
    if (c.kind != SketchKind::box) {
        return error + 0.031;
    }
    // of a query that is too small to be told from zero, the bound is reach times its largest channel
    return error + (amax > 1e-30 ? 1.1 * fine : 2.1 * amax) * (reach + c.head_dim * box_scale);
}

struct ScanRun {
    int n_blocks;
    int reselect = 1;
    gpu::StepState state{};
    uint32_t first_turn = 0;
};

constexpr float kUntouched = 12345.0f;

std::vector<float> scan(const Case & c, const Instance & in, const Sketches & sketches, const ScanRun & run, size_t stride,
                        gpu::Stream stream) {
    const DeviceArray<float> q(in.q);
    const DeviceArray<gpu::StepState> state({run.state});
    const DeviceArray<float> estimates(
        std::vector<float>(stride * c.group * c.n_head_kv * c.n_tokens * c.n_streams, kUntouched));
    gpu::SketchScanArgs args{};
    args.sketches = sketches.array(c);
    args.n_streams = c.n_streams;
    args.n_tokens = c.n_tokens;
    args.group = c.group;
    args.n_blocks = run.n_blocks;
    args.q = reinterpret_cast<const char *>(q.data);
    args.q_stride_head = (c.head_dim + in.q_pad) * 4;
    args.q_stride_token = args.q_stride_head * c.n_head_kv * c.group;
    args.scale = c.scale;
    args.softcap = c.softcap;
    args.estimates = estimates.data;
    args.stride = stride;
    args.state = state.data;
    args.reselect = run.reselect;
    args.first_turn = run.first_turn;
    gpu::launch_sketch_scan(args, stream);
    if (!gpu::stream_sync(stream) || !gpu::check()) {
        fail(c, gpu::last_error(), 0, 0);
    }
    return estimates.read();
}

void check_scan(const Case & c, const Instance & in, Sketches & sketches, const ScanRun & run, bool with_reference,
                gpu::Stream stream) {
    const SketchKernels & cpu = *sketch_kernels("portable");
    const size_t width = static_cast<size_t>(run.n_blocks) * kSketchBlockStrips, stride = width + (c.partial ? 3 : 0);
    const std::vector<float> got = scan(c, in, sketches, run, stride, stream);
    const bool keeps = run.reselect > 1 && c.n_tokens == 1 && c.n_streams == 1;
    std::vector<float> want(stride * c.group);
    std::vector<char> prepared(sketch_query_bytes(c.kind, c.head_dim, c.group));
    size_t list = 0;
    for (int s = 0; s < c.n_streams; ++s) {
        for (int t = 0; t < c.n_tokens; ++t) {
            for (int h = 0; h < c.n_head_kv; ++h, ++list) {
                const float * q = in.query(c, s, t, h * c.group);
                const SketchQuery query{reinterpret_cast<const char *>(q), (c.head_dim + in.q_pad) * 4, c.group, c.scale,
                                        c.softcap};
                want.assign(want.size(), kUntouched);
                const bool turn = (run.state.n_ubatch + run.first_turn + h) % run.reselect == 0;
                const bool scans = !keeps || run.state.scans_all || turn;
                if (scans) {
                    cpu.prepare(sketches.sketch(c, s), query, prepared.data());
                    cpu.scan(sketches.sketch(c, s), sketches.layout, query, prepared.data(), h, 0, run.n_blocks, want.data(),
                             stride);
                }
                for (int g = 0; g < c.group; ++g) {
                    for (size_t i = 0; i < stride; ++i) {
                        const double x = got[(list * c.group + g) * stride + i];
                        const bool behind = i < width && i >= static_cast<size_t>(c.n_strips);
                        const double y = behind && scans ? -kInf : want[g * stride + i];
                        const double limit = 2e-4 + 0x1p-21 * in.largest_logit;
                        if (x == y) {
                            continue;
                        }
                        if (std::fabs(y) == kInf || y == kUntouched || !(std::fabs(x - y) <= limit)) {
                            fail(c, "estimate, against the CPU", x, y);
                        } else {
                            worst_cpu = std::max(worst_cpu, std::fabs(x - y) / limit);
                        }
                    }
                    for (int strip = 0; with_reference && scans && strip < c.n_strips; strip += 1 + strip / 5) {
                        if (strip >= static_cast<int>(width) || in.valid[s * c.n_strips + strip] == 0) {
                            continue;
                        }
                        const float * row = q + static_cast<size_t>(g) * (c.head_dim + in.q_pad);
                        const double x = got[(list * c.group + g) * stride + strip];
                        const double exact = sketch_reference(c.kind, in.keys(c, s), c.head_dim, h, strip,
                                                              in.valid[s * c.n_strips + strip], row, c.scale, c.softcap);
                        double top;
                        const double limit = allowed(c, in, s, h, strip, row, exact, &top);
                        if (!(std::fabs(x - exact) <= limit)) {
                            fail(c, "estimate, against the reference", x, exact);
                        }
                        if (c.kind == SketchKind::box && !(x >= top)) {
                            fail(c, "bound below the largest logit", x, top);
                        }
                        worst_reference = std::max(worst_reference, std::fabs(x - exact) / limit);
                    }
                }
            }
        }
    }
}

// ---- cases -------------------------------------------------------------------------------------------------------------------

std::vector<gpu::StaleStrip> all_strips(const Case & c, const Instance & in, cases::Random & rng) {
    std::vector<gpu::StaleStrip> stale;
    for (int s = 0; s < c.n_streams; ++s) {
        for (int strip = 0; strip < c.n_strips; ++strip) {
            // what stands above the 16 bits does not count
            stale.push_back({s, strip, in.valid[s * c.n_strips + strip] | static_cast<uint32_t>(rng.next()) << 16});
        }
    }
    for (size_t i = stale.size() - 1; i > 0; --i) {
        std::swap(stale[i], stale[rng.next() % (i + 1)]);
    }
    return stale;
}

void check_case(const Case & c, uint64_t seed, gpu::Stream stream) {
    cases::Random rng(seed + 77);
    const Instance in(c, seed);
    Sketches sketches(c, rng);
    std::vector<gpu::StaleStrip> stale = all_strips(c, in, rng);
    build(c, in, sketches, {}, 1, stream);
    build(c, in, sketches, stale, static_cast<int>(rng.next() % 2 ? stale.size() : rng.next() % stale.size()), stream);

    ScanRun run{};
    run.n_blocks = sketches.layout.n_blocks;
    check_scan(c, in, sketches, run, true, stream);
    run.n_blocks = 1 + static_cast<int>(rng.next() % static_cast<uint64_t>(run.n_blocks));
    run.reselect = 4;
    run.first_turn = static_cast<uint32_t>(rng.next() % 100);
    run.state.n_ubatch = static_cast<uint32_t>(rng.next() % 100);
    run.state.scans_all = rng.next() % 4 == 0;
    check_scan(c, in, sketches, run, false, stream);

    // one strip, which becomes empty or full
    gpu::StaleStrip one = stale[0];
    one.valid = one.valid & 0xffffu ? 0u : one.valid;
    build(c, in, sketches, {one}, 1, stream);
}

void check_all() {
    const int dims[] = {64, 80, 96, 128, 256};
    const int groups[] = {1, 2, 3, 4, 5, 7, 8, 9};
    const int tokens[] = {1, 1, 1, 2, 3, 5, 16};
    const int strips[] = {1, 15, 16, 17, 27, 33, 61, 113};
    const float softcaps[] = {0.0f, 0.0f, 0.0f, 30.0f, 2.0f};
    gpu::Stream stream = nullptr;
    gpu::stream_create(&stream);
    cases::Random rng(11);
    uint64_t n = 0;
    for (int kind = 1; kind <= 3; ++kind) {
        for (int dim : dims) {
            for (int type = 0; type < 2; ++type) {
                if (type == 1 && dim % 32 != 0) {
                    continue;
                }
                for (int i = 0; i < 8; ++i, ++n) {
                    Case c{};
                    c.kind = static_cast<SketchKind>(kind);
                    c.head_dim = dim;
                    c.type = static_cast<CellType>(type);
                    c.n_strips = strips[rng.next() % 8];
                    c.group = groups[rng.next() % 8];
                    c.n_tokens = c.n_strips > 40 ? 1 : tokens[rng.next() % 7];
                    c.n_streams = c.n_tokens > 3 || c.n_strips > 40 ? 1 : 1 + static_cast<int>(rng.next() % 3);
                    c.data = static_cast<Data>((i + kind + dim / 16) % static_cast<int>(Data::count));
                    c.n_head_kv = c.n_strips > 40 || c.n_tokens > 3 ? 1 : 1 + static_cast<int>(rng.next() % 3);
                    c.scale = (rng.next() % 5 == 0 ? -1.0f : 1.0f) / std::sqrt(static_cast<float>(dim));
                    c.softcap = softcaps[rng.next() % 5];
                    c.partial = rng.next() % 2 == 0;
                    c.arena = rng.next() % 2 == 0;
                    check_case(c, n, stream);
                }
            }
        }
    }
    // more strips than a launch's warps take at once
    check_case({SketchKind::b2, 64, 1, 1, 482, 2, 1, CellType::f16, Data::normal, 0.125f, 0.0f, false, false}, n++, stream);
    check_case({SketchKind::box, 64, 2, 1, 577, 1, 1, CellType::q8_0, Data::offset, 0.125f, 0.0f, true, false}, n++, stream);
    gpu::stream_destroy(stream);
    std::printf("%llu cases, largest difference from the CPU %.3f and from the reference %.3f of what is allowed\n",
                static_cast<unsigned long long>(n), worst_cpu, worst_reference);
}

}  // namespace

int main() {
    gpu::Device device;
    if (gpu::device_count() < 1 || !gpu::use_device(0) || !gpu::device(0, device)) {
        std::printf("no device: %s\n", gpu::last_error());
        return 77;
    }
    check_all();
    std::printf(failures == 0 ? "ok\n" : "%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
