// Whether the time of a kernel depends on the values it reads: attention, and building and scanning sketches, over a cache of ordinary
// values and over caches that a processor may treat apart.
//   bench_values [rounds=31] [isa]
// Prints each time over that of ordinary values. All kinds take turns within a round, so that noise hits them alike.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

#include "attend_cases.h"
#include "sketch_internal.h"
#include "subnormals.h"

using namespace edgekv;

namespace {

constexpr int kHeadDim = 64, kGroup = 3, kHeads = 3, kCells = 1024, kStrips = kCells / kSketchStripCells;

struct Kind {
    const char * name;
    float (*value)(cases::Random & rng);
    float query_scale;
};

constexpr float kInf = std::numeric_limits<float>::infinity();
const Kind kKinds[] = {
    {"ordinary", [](cases::Random & rng) { return rng.normal(); }, 1.0f},
    {"zeros", [](cases::Random &) { return 0.0f; }, 1.0f},
    {"subnormal f16", [](cases::Random & rng) { return rng.normal() * 0x1p-18f; }, 1.0f},
    {"subnormal queries", [](cases::Random & rng) { return rng.normal(); }, 0x1p-140f},
    {"subnormal weights", [](cases::Random & rng) { return rng.normal(); }, 60.0f},  // logits so far apart that exp() underflows
    {"largest f16", [](cases::Random & rng) { return rng.uniform() < 0.5f ? 65504.0f : -65504.0f; }, 1.0f},
    {"infinities", [](cases::Random & rng) { return rng.uniform() < 0.1f ? kInf : rng.normal(); }, 1.0f},
    {"NaN", [](cases::Random & rng) { return rng.uniform() < 0.1f ? std::numeric_limits<float>::quiet_NaN() : rng.normal(); }, 1.0f},
};
constexpr int kNumKinds = sizeof(kKinds) / sizeof(kKinds[0]);

struct Data {
    std::vector<char> k, v;
    std::vector<float> q, out;
};

Data fill(const Kind & kind, CellType type) {
    cases::Random rng(7);
    const size_t row = cases::row_bytes(type, kHeadDim);
    Data data;
    data.q.resize(kHeads * kGroup * kHeadDim);
    data.out.resize(data.q.size());
    for (float & x : data.q) {
        x = rng.normal() * kind.query_scale;
    }
    for (auto * cache : {&data.k, &data.v}) {
        cache->resize(row * kCells * kHeads);
        std::vector<float> values(kHeadDim);
        for (size_t at = 0; at < cache->size(); at += row) {
            for (float & x : values) {
                x = kind.value(rng);
            }
            if (type == CellType::f16) {
                for (int i = 0; i < kHeadDim; ++i) {
                    const uint16_t h = std::isnan(values[i]) ? 0x7e00 : cases::to_half(values[i]);
                    std::memcpy(cache->data() + at + 2 * i, &h, 2);
                }
                continue;
            }
            // a block's values are what the scale makes of them: the scale takes the kind, the codes stay ordinary
            for (size_t b = 0; b < kHeadDim / 32; ++b) {
                const float scale = values[32 * b];
                const uint16_t h = std::isnan(scale) ? 0x7e00 : cases::to_half(std::isinf(scale) ? scale : scale / 127.0f);
                std::memcpy(cache->data() + at + 34 * b, &h, 2);
                for (int i = 0; i < 32; ++i) {
                    cache->data()[at + 34 * b + 2 + i] = static_cast<char>(rng.next() % 255 - 127);
                }
            }
        }
    }
    return data;
}

AttendProblem problem_of(Data & data, CellType type) {
    AttendProblem p{};
    p.head_dim = kHeadDim;
    p.n_head = kHeads * kGroup;
    p.n_head_kv = kHeads;
    p.n_tokens = 1;
    p.n_cells = kCells;
    p.page_tokens = 16;
    p.q = reinterpret_cast<const char *>(data.q.data());
    p.q_stride_head = p.out_stride_head = kHeadDim * 4;
    p.k_type = p.v_type = type;
    p.k = data.k.data();
    p.v = data.v.data();
    p.k_stride_head = p.v_stride_head = cases::row_bytes(type, kHeadDim);
    p.k_stride_cell = p.v_stride_cell = p.k_stride_head * kHeads;
    p.scale = 0.125f;
    p.out = reinterpret_cast<char *>(data.out.data());
    return p;
}

struct Sketched {
    std::vector<char> raw, prepared;
    std::vector<float> estimates;
    Sketch sketch;
    SketchLayout layout;
};

template <class F>
double time_ns(F && f, int repeats) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) {
        f();
    }
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / repeats;
}

double median(std::vector<double> x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
}

void bench(const char * isa, CellType type, int rounds) {
    const SketchKernels * sketches = sketch_kernels(isa);
    const char * attends_as = std::strcmp(isa, "avx512vnni") == 0 ? "avx512" : isa;
    Isa attend_isa = Isa::portable;
    for (const Isa one : {Isa::portable, Isa::avx2, Isa::avx512}) {
        attend_isa = std::strcmp(attends_as, isa_name(one)) == 0 ? one : attend_isa;
    }
    if (sketches == nullptr || !isa_supported(attend_isa)) {
        return;
    }

    std::vector<Data> data;
    std::vector<Sketched> sketched(kNumKinds);
    const size_t bytes = sketch_bytes(SketchKind::b2, kHeadDim, kHeads, kStrips);
    for (int i = 0; i < kNumKinds; ++i) {
        data.push_back(fill(kKinds[i], type));
        Sketched & s = sketched[i];
        s.raw.resize(bytes + 64);
        s.layout = sketch_layout(SketchKind::b2, kHeadDim, kStrips);
        s.sketch = {SketchKind::b2, kHeadDim, kHeads, kStrips,
                    reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(s.raw.data()) + 63) / 64 * 64)};
        s.prepared.resize(sketch_query_bytes(SketchKind::b2, kHeadDim, kGroup));
        s.estimates.resize(static_cast<size_t>(s.layout.n_blocks) * kSketchBlockStrips * kGroup);
    }
    AttendProblem first = problem_of(data[0], type);
    std::vector<float> raw(attend_workspace_bytes(first, 1) / 4 + 16);
    char * workspace = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(raw.data()) + 63) / 64 * 64);

    std::vector<double> attend[kNumKinds], build[kNumKinds], scan[kNumKinds];
    for (int round = 0; round < rounds; ++round) {
        for (int i = 0; i < kNumKinds; ++i) {
            const AttendProblem p = problem_of(data[i], type);
            Sketched & s = sketched[i];
            const size_t row = cases::row_bytes(type, kHeadDim);
            const SketchKeys keys{type, data[i].k.data(), row * kHeads, row};
            SketchQuery query{};
            query.q = reinterpret_cast<const char *>(data[i].q.data());
            query.stride_head = kHeadDim * 4;
            query.group = kGroup;
            query.scale = 0.125f;
            attend[i].push_back(time_ns([&] { attend_run(p, workspace, 0, 1, attend_isa); }, 4));
            build[i].push_back(time_ns([&] {
                for (int strip = 0; strip < kStrips; ++strip) {
                    sketches->build(s.sketch, s.layout, keys, 0, strip, 0xffff);
                }
            }, 1));
            scan[i].push_back(time_ns([&] {
                const SubnormalsAreZero fast;  // as sketch.cpp has it
                sketches->prepare(s.sketch, query, s.prepared.data());
                sketches->scan(s.sketch, s.layout, query, s.prepared.data(), 0, 0, s.layout.n_blocks, s.estimates.data(),
                               static_cast<size_t>(s.layout.n_blocks) * kSketchBlockStrips);
            }, 8));
        }
    }
    std::printf("%-10s %-4s", isa, type == CellType::f16 ? "f16" : "q8_0");
    std::printf("  attend %7.1f us, build %6.1f us, scan %6.2f us\n", median(attend[0]) / 1e3, median(build[0]) / 1e3, median(scan[0]) / 1e3);
    for (int i = 1; i < kNumKinds; ++i) {
        std::printf("  %-18s %6.2fx %14.2fx %14.2fx\n", kKinds[i].name, median(attend[i]) / median(attend[0]),
                    median(build[i]) / median(build[0]), median(scan[i]) / median(scan[0]));
    }
}

}  // namespace

int main(int argc, char ** argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 31;
    for (const char * isa : {"portable", "avx2", "avx512", "avx512vnni"}) {
        if (argc <= 2 || std::strcmp(argv[2], isa) == 0) {
            bench(isa, CellType::f16, rounds);
            bench(isa, CellType::q8_0, rounds);
        }
    }
    return 0;
}
