// Times the sketch kernels and sampling on one thread, every layer with sketches of its own, as in a real model.
//   bench_sketch [n_groups=120] [rounds=15] [isa]
// Prints medians per 16 cells of a scan: hot (one head again and again), walk (all heads in order, from whatever cache holds them), cold
// (the same after other memory has been read), and the whole walk per step; of sampling one head's rows, with how many it finds; and what
// a group costs to build, and to scan from its keys. Cycles are of the clock measured at the start.
#include <cstdio>

#include "bench_scan.h"

using namespace edgekv;
using namespace test;

namespace {

struct Shape {
    const char * name;
    int head_dim, group, n_head_kv, n_layers;
};

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

void time_shape(const Shape & shape, int n_groups, int rounds, const char * only, double ghz) {
    const int n_cells = n_groups * kGroupCells;
    Random rng(5);
    const std::vector<float> q = normal_values(static_cast<size_t>(shape.group) * shape.head_dim, rng);
    std::vector<char> k[2];
    for (int type = 0; type < 2; ++type) {
        k[type] = repeated_rows(static_cast<CellType>(type), shape.head_dim, static_cast<size_t>(n_cells) * shape.n_head_kv, rng);
    }
    std::vector<char> other(size_t(96) << 20, 1);
    volatile long sink = 0;
    BenchScan bench(shape.head_dim, shape.group, shape.n_head_kv, n_groups, shape.n_layers, q, {~uint64_t{0}, 0});
    bench.sampling.resolution = 1000.0f;

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
            const size_t bytes = row_bytes(static_cast<CellType>(type), shape.head_dim);
            return SketchKeys{static_cast<CellType>(type), k[type].data(), bytes * shape.n_head_kv, bytes};
        };
        const auto build_all = [&](int type, int n_layers) {
            for (int i = 0; i < n_layers; ++i) {
                for (int h = 0; h < shape.n_head_kv; ++h) {
                    bench.build(*kernels, i, h, keys(type));
                }
            }
        };
        build_all(0, shape.n_layers);
        const auto walk = [&] {
            for (const Sketch & sketch : bench.layers) {
                for (int h = 0; h < shape.n_head_kv; ++h) {
                    bench.scan(*kernels, sketch, h);
                }
            }
        };
        int n_rows = 0;

        const double strips = 4.0 * n_groups, heads = shape.n_layers * shape.n_head_kv;
        std::vector<double> hot, warm, cold, sampled, built[2], from_keys;
        for (int round = 0; round < (isa[0] == 'p' ? 3 : rounds); ++round) {
            hot.push_back(time_ns(20, [&] { bench.scan(*kernels, bench.layers[0], 0); }) / strips);
            walk();
            warm.push_back(time_ns(1, walk) / (heads * strips));
            long sum = 0;
            for (size_t i = 0; i < other.size(); i += 64) {
                sum += other[i];
            }
            sink = sink + sum;
            cold.push_back(time_ns(1, walk) / (heads * strips));
            sampled.push_back(time_ns(20, [&] { n_rows = sample_rows(bench.sampling, sample_isa).n_rows; }) / strips);
            for (int type = 0; type < 2; ++type) {
                built[type].push_back(time_ns(1, [&] { build_all(type, 1); }) / (n_groups * shape.n_head_kv));
            }
            build_all(0, 1);
            from_keys.push_back(time_ns(1, [&] { bench.scan_keys(*kernels, keys(0)); }) / n_groups);
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
    time_shape({"3 heads x 64, group 3 (SmolLM2-135M)", 64, 3, 3, 30}, n_groups, rounds, only, ghz);
    time_shape({"8 heads x 128, group 4", 128, 4, 8, 4}, n_groups, rounds, only, ghz);
    return 0;
}
