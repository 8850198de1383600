// Times the sketch kernels on one thread, every layer with sketches of its own, as in a real model.
//   bench_sketch [n_strips=480] [rounds=15] [isa]
// Prints medians per strip: hot (one head again and again), walk (all heads in order, from whatever cache holds them), cold (the
// same after other memory has been read), the whole walk per step, and what building a strip costs: the tail strip of every head
// in turn (as a decode step does), and whole heads (as a prefill does). Cycles are of the clock measured at the start.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "attend_cases.h"
#include "sketch_internal.h"

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

void bench(const Shape & shape, int n_strips, int rounds, const char * only, double ghz) {
    const int n_cells = n_strips * kSketchStripCells;
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

    std::printf("%s: %d strips, %d layers, ns (cycles) per strip; ms per step\n", shape.name, n_strips, shape.n_layers);
    std::printf("  %-11s %-4s %-15s %-15s %-15s %-8s %-15s %-15s %-15s\n", "isa", "kind", "hot", "walk", "cold", "cold ms",
                "build tail f16", "build all f16", "build all q8_0");
    for (const char * isa : {"portable", "avx2", "avx512", "avx512vnni"}) {
        const SketchKernels * kernels = sketch_kernels(isa);
        if (kernels == nullptr || (only != nullptr && std::strcmp(only, isa) != 0)) {
            continue;
        }
        for (SketchKind kind : {SketchKind::box, SketchKind::b1, SketchKind::b2}) {
            const SketchLayout layout = sketch_layout(kind, shape.head_dim, n_strips);
            const size_t bytes = sketch_bytes(kind, shape.head_dim, shape.n_head_kv, n_strips);
            std::vector<char> raw(bytes * shape.n_layers + 64);
            char * data = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(raw.data()) + 63) / 64 * 64);
            std::vector<Sketch> layers;
            for (int i = 0; i < shape.n_layers; ++i) {
                layers.push_back({kind, shape.head_dim, shape.n_head_kv, n_strips, data + i * bytes});
            }
            const auto keys = [&](int type) {
                const size_t row = cases::row_bytes(static_cast<CellType>(type), shape.head_dim);
                return SketchKeys{static_cast<CellType>(type), k[type].data(), row * shape.n_head_kv, row};
            };
            const auto build_all = [&](int type, int n_layers) {
                const SketchKeys from = keys(type);
                for (int i = 0; i < n_layers; ++i) {
                    for (int h = 0; h < shape.n_head_kv; ++h) {
                        for (int s = 0; s < n_strips; ++s) {
                            kernels->build(layers[i], layout, from, h, s, 0xffff);
                        }
                    }
                }
            };
            build_all(0, shape.n_layers);
            SketchQuery query{};
            query.q = reinterpret_cast<const char *>(q.data());
            query.stride_head = static_cast<size_t>(shape.head_dim) * 4;
            query.group = shape.group;
            query.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
            std::vector<char> prepared(sketch_query_bytes(kind, shape.head_dim, shape.group));
            const size_t stride = static_cast<size_t>(layout.n_blocks) * kSketchBlockStrips;
            std::vector<float> estimates(stride * shape.group);
            const auto scan = [&](const Sketch & sketch, int head) {
                kernels->prepare(sketch, query, prepared.data());
                kernels->scan(sketch, layout, query, prepared.data(), head, 0, layout.n_blocks, estimates.data(), stride);
            };
            const auto walk = [&] {
                for (const Sketch & sketch : layers) {
                    for (int h = 0; h < shape.n_head_kv; ++h) {
                        scan(sketch, h);
                    }
                }
            };
            const double strips = static_cast<double>(n_strips), heads = shape.n_layers * shape.n_head_kv;
            std::vector<double> hot, warm, cold, tail, built[2];
            for (int round = 0; round < (std::strcmp(isa, "portable") == 0 ? 3 : rounds); ++round) {
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
                for (const Sketch & sketch : layers) {
                    for (int h = 0; h < shape.n_head_kv; ++h) {
                        kernels->build(sketch, layout, keys(0), h, n_strips - 1, 0x7fff);
                    }
                }
                tail.push_back((now_ns() - start) / heads);
                for (int type = 0; type < 2; ++type) {
                    start = now_ns();
                    build_all(type, 1);
                    built[type].push_back((now_ns() - start) / (strips * shape.n_head_kv));
                }
                build_all(0, 1);
            }
            std::printf("  %-11s %-4s", isa, kind == SketchKind::box ? "box" : kind == SketchKind::b1 ? "b1" : "b2");
            for (const auto & x : {hot, warm, cold}) {
                std::printf(" %6.2f (%6.1f)", median(x), median(x) * ghz);
            }
            std::printf("  %7.3f", median(cold) * strips * heads * 1e-6);
            for (const auto & x : {tail, built[0], built[1]}) {
                std::printf("  %6.0f (%6.0f)", median(x), median(x) * ghz);
            }
            std::printf("\n");
        }
    }
}

}  // namespace

int main(int argc, char ** argv) {
    const int n_strips = argc > 1 ? std::atoi(argv[1]) : 480;
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
    const char * only = argc > 3 ? argv[3] : nullptr;
    const double ghz = clock_ghz();
    std::printf("clock %.2f GHz\n", ghz);
    bench({"3 heads x 64, group 3 (SmolLM2-135M)", 64, 3, 3, 30}, n_strips, rounds, only, ghz);
    bench({"8 heads x 128, group 4", 128, 4, 8, 4}, n_strips, rounds, only, ghz);
    return 0;
}
