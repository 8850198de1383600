// Times the sketch kernels and sampling on one thread, every layer with sketches of its own, as in a real model.
//   bench_sketch [n_groups=120] [rounds=15] [isa]
// Prints medians per 16 cells of a scan: hot (one head again and again), walk (all heads in order, from whatever cache holds them), cold
// (the same after other memory has been read), and the whole walk per step; of sampling one head's rows, with how many it finds; and what
// a group costs to build, and to scan from its keys. Cycles are of the clock measured at the start.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "attend_cases.h"
#include "kernels/select/sample.h"
#include "kernels/sketch/sketch_internal.h"
#include "kernels/simd/subnormals.h"

using namespace edgekv;

namespace {

struct Shape {
    const char * name;
    int head_dim, group, n_head_kv, n_layers;
};

double now_ns() {
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Cycles per nanosecond, from a chain of multiplications of 3 cycles each.
double clock_ghz() {
    double best = 0.0;
    for (int round = 0; round < 20; ++round) {
        uint64_t x = 3;
        const double start = now_ns();
        for (int i = 0; i < 100000; ++i) {
            x *= 0x9e3779b97f4a7c15u;
#if defined(__GNUC__)
            asm volatile("" : "+r"(x));
#endif
        }
        best = std::max(best, 300000.0 / (now_ns() - start));
    }
    return best;
}

double median(std::vector<double> x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
}

void bench(const Shape & shape, int n_groups, int rounds, const char * only, double ghz) {
    const int n_cells = n_groups * kGroupCells;
    cases::Random rng(5);
    std::vector<float> values(static_cast<size_t>(shape.head_dim)), q(static_cast<size_t>(shape.group) * shape.head_dim);
    for (float & x : q) {
        x = 2.0f * rng.normal();
    }
    std::vector<char> k[2];
    for (int type = 0; type < 2; ++type) {
        const size_t row = cases::row_bytes(static_cast<CellType>(type), shape.head_dim);
        k[type].resize(row * n_cells * shape.n_head_kv);
        for (size_t at = 0; at < k[type].size(); at += row) {
            for (float & x : values) {
                x = rng.normal();
            }
            cases::store_row(static_cast<CellType>(type), values, k[type].data() + at);
        }
    }
    std::vector<char> other(size_t(96) << 20, 1);
    volatile long sink = 0;
    const SketchLayout layout = sketch_layout(shape.head_dim, n_groups);
    const size_t bytes = sketch_bytes(SketchKind::b3, shape.head_dim, shape.n_head_kv, n_groups);
    std::vector<char> raw(bytes * shape.n_layers + 64);
    char * data = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(raw.data()) + 63) / 64 * 64);
    std::vector<Sketch> layers;
    for (int i = 0; i < shape.n_layers; ++i) {
        layers.push_back({SketchKind::b3, shape.head_dim, shape.n_head_kv, n_groups, data + i * bytes});
    }
    const std::vector<Sight> sight(static_cast<size_t>(n_groups), Sight{~uint64_t{0}, 0});
    SketchQuery query{};
    query.q = reinterpret_cast<const char *>(q.data());
    query.stride_head = static_cast<size_t>(shape.head_dim) * 4;
    query.n_tokens = 1;
    query.group = shape.group;
    query.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    query.sight = sight.data();
    query.sight_stride = sight.size();

    std::printf("%s: %d groups, %d layers; ns (cycles)\n", shape.name, n_groups, shape.n_layers);
    std::printf("  %-11s %-16s %-16s %-16s %-8s %-22s %-16s %-16s %-16s\n", "isa", "hot, 16 cells", "walk", "cold", "cold ms",
                "sample 16 cells: rows", "build f16", "build q8_0", "from keys f16");
    for (const char * isa : {"portable", "avx2", "avx512", "avx512vnni"}) {
        const SketchKernels * kernels = sketch_kernels(isa);
        if (kernels == nullptr || (only != nullptr && std::strcmp(only, isa) != 0)) {
            continue;
        }
        const Isa sample_isa = isa[0] == 'p' ? Isa::portable : isa[3] == '2' ? Isa::avx2 : Isa::avx512;
        const auto keys = [&](int type) {
            const size_t row = cases::row_bytes(static_cast<CellType>(type), shape.head_dim);
            return SketchKeys{static_cast<CellType>(type), k[type].data(), row * shape.n_head_kv, row};
        };
        const auto build_all = [&](int type, int n_layers) {
            const SketchKeys from = keys(type);
            for (int i = 0; i < n_layers; ++i) {
                for (int h = 0; h < shape.n_head_kv; ++h) {
                    for (int g = 0; g < n_groups; ++g) {
                        kernels->build(layers[i], layout, from, h, g, ~uint64_t{0});
                    }
                }
            }
        };
        build_all(0, shape.n_layers);
        std::vector<char> prepared(sketch_query_bytes(shape.head_dim, shape.group));
        std::vector<uint16_t> cells(static_cast<size_t>(n_cells) * shape.group);
        std::vector<float> tops(static_cast<size_t>(n_groups) * shape.group), sums(tops.size());
        const Shares shares{cells.data(), tops.data(), sums.data(), static_cast<size_t>(n_cells), static_cast<size_t>(n_groups)};
        const auto scan = [&](const Sketch & sketch, int head) {
            const SubnormalsAreZero fast;  // as sketch.cpp has it
            kernels->prepare(shape.head_dim, layout.padded, query, prepared.data());
            kernels->scan(sketch, layout, query, prepared.data(), head, 0, n_groups, shares);
        };
        const auto walk = [&] {
            for (const Sketch & sketch : layers) {
                for (int h = 0; h < shape.n_head_kv; ++h) {
                    scan(sketch, h);
                }
            }
        };
        std::vector<int32_t> rows(static_cast<size_t>(n_cells));
        std::vector<float> weights(rows.size());
        std::vector<char> scratch(sample_scratch_bytes(n_groups, shape.group) + 64);
        SampleProblem sampling{};
        sampling.n_groups = n_groups;
        sampling.group = shape.group;
        sampling.shares = cells.data();
        sampling.tops = tops.data();
        sampling.sums = sums.data();
        sampling.cell_stride = static_cast<size_t>(n_cells);
        sampling.group_stride = static_cast<size_t>(n_groups);
        sampling.sight = sight.data();
        sampling.resolution = 1000.0f;
        sampling.rows = rows.data();
        sampling.weights = weights.data();
        sampling.scratch = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
        int n_rows = 0;

        const double strips = 4.0 * n_groups, heads = shape.n_layers * shape.n_head_kv;
        std::vector<double> hot, warm, cold, sampled, built[2], from_keys;
        for (int round = 0; round < (isa[0] == 'p' ? 3 : rounds); ++round) {
            double start = now_ns();
            for (int i = 0; i < 20; ++i) {
                scan(layers[0], 0);
            }
            hot.push_back((now_ns() - start) / (20 * strips));
            walk();
            start = now_ns();
            walk();
            warm.push_back((now_ns() - start) / (heads * strips));
            long sum = 0;
            for (size_t i = 0; i < other.size(); i += 64) {
                sum += other[i];
            }
            sink = sink + sum;
            start = now_ns();
            walk();
            cold.push_back((now_ns() - start) / (heads * strips));
            start = now_ns();
            for (int i = 0; i < 20; ++i) {
                n_rows = sample_rows(sampling, sample_isa).n_rows;
            }
            sampled.push_back((now_ns() - start) / (20 * strips));
            for (int type = 0; type < 2; ++type) {
                start = now_ns();
                build_all(type, 1);
                built[type].push_back((now_ns() - start) / (n_groups * shape.n_head_kv));
            }
            build_all(0, 1);
            start = now_ns();
            for (int g = 0; g < n_groups; ++g) {
                kernels->scan_keys(keys(0), shape.head_dim, query, 0, g, shares);
            }
            from_keys.push_back((now_ns() - start) / n_groups);
        }
        std::printf("  %-11s", isa);
        for (const auto & x : {hot, warm, cold}) {
            std::printf(" %6.2f (%6.1f) ", median(x), median(x) * ghz);
        }
        std::printf("  %7.3f  %6.2f (%5.1f): %4d   ", median(cold) * strips * heads * 1e-6, median(sampled), median(sampled) * ghz, n_rows);
        for (const auto & x : {built[0], built[1], from_keys}) {
            std::printf("  %6.0f (%6.0f)", median(x), median(x) * ghz);
        }
        std::printf("\n");
    }
}

}  // namespace

int main(int argc, char ** argv) {
    const int n_groups = argc > 1 ? std::atoi(argv[1]) : 120;
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
    const char * only = argc > 3 ? argv[3] : nullptr;
    const double ghz = clock_ghz();
    std::printf("clock %.2f GHz\n", ghz);
    bench({"3 heads x 64, group 3 (SmolLM2-135M)", 64, 3, 3, 30}, n_groups, rounds, only, ghz);
    bench({"8 heads x 128, group 4", 128, 4, 8, 4}, n_groups, rounds, only, ghz);
    return 0;
}
