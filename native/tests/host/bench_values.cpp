// Does the time of a kernel depend on the values that it reads? Attention over every cell and over lists of rows, building and scanning
// sketches, scanning keys, and sampling, over a cache of ordinary values and over caches that a processor may treat apart.
//   bench_values [rounds=31] [isa]
// Prints each time over that of ordinary values. All kinds take turns within a round, so that noise hits them alike.
#include <cstdio>
#include <deque>

#include "bench_scan.h"

using namespace edgekv;
using namespace test;

namespace {

constexpr int kHeadDim = 64, kGroup = 3, kHeads = 3, kCells = 1024, kGroups = kCells / kGroupCells;

struct Kind {
    const char * name;
    float (*value)(Random & rng);
    float query_scale;
};

const Kind kKinds[] = {
    {"ordinary", [](Random & rng) { return rng.normal(); }, 1.0f},
    {"zeros", [](Random &) { return 0.0f; }, 1.0f},
    {"subnormal f16", [](Random & rng) { return rng.normal() * 0x1p-18f; }, 1.0f},
    {"subnormal queries", [](Random & rng) { return rng.normal(); }, 0x1p-140f},
    {"subnormal weights", [](Random & rng) { return rng.normal(); }, 60.0f},  // logits so far apart that exp() underflows
    {"largest f16", [](Random & rng) { return rng.uniform() < 0.5f ? 65504.0f : -65504.0f; }, 1.0f},
    {"infinities", [](Random & rng) { return rng.uniform() < 0.1f ? kInf : rng.normal(); }, 1.0f},
    {"NaN", [](Random & rng) { return rng.uniform() < 0.1f ? kNan : rng.normal(); }, 1.0f},
};
constexpr int kNumKinds = sizeof(kKinds) / sizeof(kKinds[0]);

struct Data {
    std::vector<char> k, v;
    std::vector<float> q, out;
};

Data fill(const Kind & kind, CellType type) {
    Random rng(7);
    const size_t bytes = row_bytes(type, kHeadDim);
    Data data;
    data.q.resize(kHeads * kGroup * kHeadDim);
    data.out.resize(data.q.size());
    for (float & x : data.q) {
        x = rng.normal() * kind.query_scale;
    }
    for (auto * cache : {&data.k, &data.v}) {
        cache->resize(bytes * kCells * kHeads);
        std::vector<float> values(kHeadDim);
        for (size_t at = 0; at < cache->size(); at += bytes) {
            for (float & x : values) {
                x = kind.value(rng);
            }
            if (type == CellType::f16) {
                for (int i = 0; i < kHeadDim; ++i) {
                    const uint16_t h = std::isnan(values[i]) ? 0x7e00 : to_half(values[i]);
                    std::memcpy(cache->data() + at + 2 * i, &h, 2);
                }
                continue;
            }
            // a block's values are what the scale makes of them: the scale takes the kind, the codes stay ordinary
            for (size_t b = 0; b < kHeadDim / 32; ++b) {
                const float scale = values[32 * b];
                const uint16_t h = std::isnan(scale) ? 0x7e00 : to_half(std::isinf(scale) ? scale : scale / 127.0f);
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
    AttendProblem p = dense_problem(kHeadDim, kHeads * kGroup, kHeads, 1, kCells, type);
    p.q = reinterpret_cast<const char *>(data.q.data());
    p.k = data.k.data();
    p.v = data.v.data();
    p.out = reinterpret_cast<char *>(data.out.data());
    return p;
}

// Every third cell of each head, with weights.
struct Lists {
    std::vector<int32_t> cells, n_rows;
    std::vector<float> weights;
    std::vector<AttendHits> hits{kHeads};
    std::vector<float> mass = std::vector<float>(kHeads * kCells / 16);

    Lists() : cells(kHeads * kCells), weights(cells.size()) {
        for (int h = 0; h < kHeads; ++h) {
            n_rows.push_back((kCells + 2) / 3);
            for (int i = 0; i < n_rows[h]; ++i) {
                cells[h * kCells + i] = 3 * i;
                weights[h * kCells + i] = i % 4 == 0 ? 1.0f : 3.5f;
            }
        }
    }
    AttendProblem of(AttendProblem p) {
        p.rows = {cells.data(), weights.data(), n_rows.data(), kCells};
        p.hits = hits.data();
        p.mass_sum = mass.data();
        p.mass_stride = kCells / 16;
        p.error_every = 1;
        return p;
    }
};

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
    std::deque<BenchScan> scans;
    Lists lists;
    for (int i = 0; i < kNumKinds; ++i) {
        data.push_back(fill(kKinds[i], type));
    }
    for (const Data & of_kind : data) {
        scans.emplace_back(kHeadDim, kGroup, kHeads, kGroups, 1, of_kind.q, Sight{~uint64_t{0}, 0xf});
        scans.back().sampling.resolution = 100.0f;
    }
    AttendProblem first = problem_of(data[0], type);
    std::vector<char> raw(std::max(attend_workspace_bytes(first, 1), attend_workspace_bytes(lists.of(first), 1)) + 64);
    char * workspace = aligned(raw);

    constexpr int kNumKernels = 6;
    static constexpr const char * kNames[kNumKernels] = {"attend", "rows", "build", "scan", "scan keys", "sample"};
    std::vector<double> times[kNumKernels][kNumKinds];
    for (int round = 0; round < rounds; ++round) {
        for (int i = 0; i < kNumKinds; ++i) {
            const AttendProblem p = problem_of(data[i], type), of_rows = lists.of(p);
            BenchScan & scan = scans[i];
            const SketchKeys keys{type, data[i].k.data(), p.k_stride_cell, p.k_stride_head};
            const auto time = [&](int kernel, int repeats, const auto & f) { times[kernel][i].push_back(time_ns(repeats, f)); };
            time(0, 4, [&] { attend_run(p, workspace, 0, 1, attend_isa); });
            time(1, 4, [&] { attend_run(of_rows, workspace, 0, 1, attend_isa); });
            time(2, 1, [&] { scan.build(*sketches, 0, 0, keys); });
            time(4, 1, [&] { scan.scan_keys(*sketches, keys); });
            time(3, 8, [&] { scan.scan(*sketches, scan.layers[0], 0); });
            time(5, 8, [&] { sample_rows(scan.sampling, attend_isa); });
        }
    }
    std::printf("%-10s %-4s", isa, type == CellType::f16 ? "f16" : "q8_0");
    for (int kernel = 0; kernel < kNumKernels; ++kernel) {
        std::printf("  %s %.2f us", kNames[kernel], median(times[kernel][0]) / 1e3);
    }
    std::printf("\n");
    for (int i = 1; i < kNumKinds; ++i) {
        std::printf("  %-18s", kKinds[i].name);
        for (const auto & of_kernel : times) {
            std::printf(" %8.2fx", median(of_kernel[i]) / median(of_kernel[0]));
        }
        std::printf("\n");
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
