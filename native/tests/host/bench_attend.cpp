// Times the attention kernels on decode steps: one query token, every layer with a cache of its own, as in a real model.
//   bench_attend [n_cells=7680] [rounds=15] [isa]
// Prints the median ms per token (all layers): of every cell, the same with mass, and of lists of rows, a sixteenth of the cells as sampling
// finds them, with mass, hits and errors. The configurations take turns within a round, so that noise hits them alike.
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>

#include "dense_problem.h"

using namespace edgekv;
using namespace test;

namespace {

struct Shape {
    const char * name;
    int head_dim, n_head, n_head_kv, n_layers;
};

enum class What { plain, mass, rows, count };
constexpr int kNumWhats = static_cast<int>(What::count);

struct Config {
    Isa isa;
    CellType type;
    int n_threads;
    What what;
    std::vector<double> ms;
};

struct Layer {
    std::vector<char> k, v;
};

// One decode step; the threads meet after every layer, as the nodes of a compute graph do.
double run_token(const std::vector<AttendProblem> & layers, char * workspace, const Config & config) {
    std::atomic<int> arrived{0};
    const auto work = [&](int ith) {
        int expected = 0;
        const auto meet = [&] {
            expected += config.n_threads;
            arrived.fetch_add(1);
            while (arrived.load() < expected) {
            }
        };
        for (const AttendProblem & layer : layers) {
            attend_run(layer, workspace, ith, config.n_threads, config.isa);
            meet();
            if (layer.mass_max != nullptr && layer.rows.stride == 0) {
                attend_observe(layer, workspace, ith, config.n_threads, config.isa);
                meet();
            }
        }
    };
    std::vector<std::thread> pool;
    std::atomic<int> ready{0};
    std::atomic<bool> go{false};
    for (int i = 1; i < config.n_threads; ++i) {
        pool.emplace_back([&, i] {
            ready.fetch_add(1);
            while (!go.load()) {
            }
            work(i);
        });
    }
    while (ready.load() < config.n_threads - 1) {
    }
    const double start = now_ns();
    go.store(true);
    work(0);
    const double ms = (now_ns() - start) * 1e-6;
    for (std::thread & t : pool) {
        t.join();
    }
    return ms;
}

void bench(const Shape & shape, int n_cells, int rounds, const char * only) {
    const int n_pages = (n_cells + 15) / 16;
    Random rng(3);
    const std::vector<float> q = normal_values(static_cast<size_t>(shape.n_head) * shape.head_dim, rng);
    std::vector<float> out(q.size());
    std::vector<float> mass(2 * static_cast<size_t>(shape.n_head_kv) * n_pages);
    std::vector<uint16_t> mask(static_cast<size_t>(n_cells));
    const int n_listed = std::max(1, n_cells / 16);
    std::vector<int32_t> cells, n_rows(static_cast<size_t>(shape.n_head_kv), n_listed);
    std::vector<float> weights;
    std::vector<AttendHits> hits(static_cast<size_t>(shape.n_head_kv));
    for (int h = 0; h < shape.n_head_kv; ++h) {
        for (int i = 0; i < n_listed; ++i) {
            cells.push_back(16 * i + static_cast<int>(rng.next() % 16));
            weights.push_back(i % 4 == 0 ? 1.0f : 1.0f + 10.0f * rng.uniform());
        }
    }

    std::vector<Layer> caches[2];
    for (int type = 0; type < 2; ++type) {
        for (int i = 0; i < shape.n_layers; ++i) {
            const auto rows = [&] { return repeated_rows(static_cast<CellType>(type), shape.head_dim, static_cast<size_t>(n_cells) * shape.n_head_kv, rng); };
            caches[type].push_back({rows(), rows()});
        }
    }
    std::vector<Config> configs;
    for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
        if (!isa_supported(isa) || (only != nullptr && std::strcmp(only, isa_name(isa)) != 0)) {
            continue;
        }
        for (CellType type : {CellType::f16, CellType::q8_0}) {
            for (int n_threads : {1, 2}) {
                for (int what = 0; what < kNumWhats; ++what) {
                    configs.push_back({isa, type, n_threads, static_cast<What>(what), {}});
                }
            }
        }
    }

    for (int round = 0; round < rounds; ++round) {
        for (Config & c : configs) {
            if (c.isa == Isa::portable && round >= 3) {
                continue;
            }
            std::vector<AttendProblem> layers;
            for (const Layer & layer : caches[static_cast<int>(c.type)]) {
                AttendProblem p = dense_problem(shape.head_dim, shape.n_head, shape.n_head_kv, 1, n_cells, c.type);
                p.q = reinterpret_cast<const char *>(q.data());
                p.k = layer.k.data();
                p.v = layer.v.data();
                p.mask_type = MaskType::f16;
                p.mask = reinterpret_cast<const char *>(mask.data());
                p.out = reinterpret_cast<char *>(out.data());
                p.mass_max = c.what != What::plain ? mass.data() : nullptr;
                p.mass_sum = c.what != What::plain ? mass.data() + mass.size() / 2 : nullptr;
                p.mass_stride = static_cast<size_t>(n_pages);
                if (c.what == What::rows) {
                    p.rows = {cells.data(), weights.data(), n_rows.data(), static_cast<size_t>(n_listed)};
                    p.hits = hits.data();
                    p.error_every = 8;
                    p.error_turn = static_cast<int>(layers.size());
                }
                layers.push_back(p);
            }
            std::vector<char> workspace(attend_workspace_bytes(layers[0], c.n_threads) + 64);
            c.ms.push_back(run_token(layers, aligned(workspace), c));
        }
    }

    std::printf("%s: %d cells, %d layers, ms per token: median (minimum)\n", shape.name, n_cells, shape.n_layers);
    std::printf("  %-9s %-5s %-8s %-16s %-16s %-16s\n", "isa", "type", "threads", "plain", "with mass", "rows");
    for (size_t i = 0; i < configs.size(); i += kNumWhats) {
        std::printf("  %-9s %-5s %-8d", isa_name(configs[i].isa), configs[i].type == CellType::f16 ? "f16" : "q8_0",
                    configs[i].n_threads);
        for (size_t j = i; j < i + kNumWhats; ++j) {
            const std::vector<double> & ms = configs[j].ms;
            std::printf(" %6.2f (%6.2f) ", median(ms), *std::min_element(ms.begin(), ms.end()));
        }
        std::printf("\n");
    }
}

}  // namespace

int main(int argc, char ** argv) {
    const int n_cells = argc > 1 ? std::atoi(argv[1]) : 7680;
    const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
    const char * only = argc > 3 ? argv[3] : nullptr;
    bench({"9/3 heads x 64 (SmolLM2-135M)", 64, 9, 3, 30}, n_cells, rounds, only);
    bench({"32/8 heads x 128", 128, 32, 8, 4}, n_cells, rounds, only);
    return 0;
}
