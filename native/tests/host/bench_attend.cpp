// Times the attention kernels on decode steps: one query token, every layer with a cache of its own, as in a real model.
//   bench_attend [n_cells=7680] [rounds=15] [isa]
// Prints the median ms per token (all layers): of every cell, the same with mass, and of lists of rows, a sixteenth of the cells as sampling
// finds them, with mass, hits and errors. The configurations take turns within a round, so that noise hits them alike.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "attend_cases.h"
#include "kernels/attend/attend.h"

using namespace edgekv;

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

// Rows of one buffer repeat with a period that no tile divides; only the traffic has to be real.
std::vector<char> fill_cache(CellType type, const Shape & shape, int n_cells, uint64_t seed) {
    cases::Random rng(seed);
    const size_t row = cases::row_bytes(type, shape.head_dim);
    const size_t rows = static_cast<size_t>(n_cells) * shape.n_head_kv, period = 997;
    std::vector<char> buffer(rows * row);
    std::vector<float> values(static_cast<size_t>(shape.head_dim));
    for (size_t r = 0; r < rows; ++r) {
        if (r >= period) {
            std::memcpy(buffer.data() + r * row, buffer.data() + (r - period) * row, row);
            continue;
        }
        for (float & x : values) {
            x = rng.normal();
        }
        cases::store_row(type, values, buffer.data() + r * row);
    }
    return buffer;
}

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
    const auto start = std::chrono::steady_clock::now();
    go.store(true);
    work(0);
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    for (std::thread & t : pool) {
        t.join();
    }
    return ms;
}

void bench(const Shape & shape, int n_cells, int rounds, const char * only) {
    const int n_pages = (n_cells + 15) / 16;
    std::vector<float> q(static_cast<size_t>(shape.n_head) * shape.head_dim), out(q.size());
    std::vector<float> mass(2 * static_cast<size_t>(shape.n_head_kv) * n_pages);
    std::vector<uint16_t> mask(static_cast<size_t>(n_cells));
    cases::Random rng(3);
    for (float & x : q) {
        x = rng.normal();
    }

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
            const CellType t = static_cast<CellType>(type);
            caches[type].push_back({fill_cache(t, shape, n_cells, 2 * i + 1), fill_cache(t, shape, n_cells, 2 * i + 2)});
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
                AttendProblem p{};
                p.head_dim = shape.head_dim;
                p.n_head = shape.n_head;
                p.n_head_kv = shape.n_head_kv;
                p.n_tokens = 1;
                p.n_cells = n_cells;
                p.page_tokens = 16;
                p.q = reinterpret_cast<const char *>(q.data());
                p.q_stride_head = p.out_stride_head = static_cast<size_t>(shape.head_dim) * 4;
                p.k_type = p.v_type = c.type;
                p.k = layer.k.data();
                p.v = layer.v.data();
                p.k_stride_head = p.v_stride_head = cases::row_bytes(c.type, shape.head_dim);
                p.k_stride_cell = p.v_stride_cell = p.k_stride_head * shape.n_head_kv;
                p.mask_type = MaskType::f16;
                p.mask = reinterpret_cast<const char *>(mask.data());
                p.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
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
            std::vector<float> raw(attend_workspace_bytes(layers[0], c.n_threads) / 4 + 16);
            char * workspace = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(raw.data()) + 63) / 64 * 64);
            c.ms.push_back(run_token(layers, workspace, c));
        }
    }

    std::printf("%s: %d cells, %d layers, ms per token: median (minimum)\n", shape.name, n_cells, shape.n_layers);
    std::printf("  %-9s %-5s %-8s %-16s %-16s %-16s\n", "isa", "type", "threads", "plain", "with mass", "rows");
    for (size_t i = 0; i < configs.size(); i += kNumWhats) {
        std::printf("  %-9s %-5s %-8d", isa_name(configs[i].isa), configs[i].type == CellType::f16 ? "f16" : "q8_0",
                    configs[i].n_threads);
        for (size_t j = i; j < i + kNumWhats; ++j) {
            std::vector<double> & ms = configs[j].ms;
            std::sort(ms.begin(), ms.end());
            std::printf(" %6.2f (%6.2f) ", ms[ms.size() / 2], ms[0]);
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
