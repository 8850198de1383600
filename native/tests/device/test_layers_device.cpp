// Decoded layers in mode sparse, kernel behind kernel without an engine, recorded and replayed.
//
//   test_layers_device              a replay gives what the launches gave, with any kernel left out too; what reads all rows is attention;
//                                   copies of rows cross the link once, and change nothing
//   test_layers_device --bench N    on a GPU: the time of 32 layers of an 8B behind N cells, with one kernel left out at a time,
//                                   and of as many launches of an empty kernel
#include <cstring>
#include <string>

#include "decoded_layers.h"
#include "graph.h"

using namespace edgekv;
using namespace edgekv::gpu;
using namespace test;

// nvcc names a kernel by its namespace, and finds two without a name here
namespace layers_bench {
__global__ void nothing() {}
}  // namespace layers_bench

namespace {

// What a step of all layers enqueues, without the launch `left_out` of each (-1: with all).
void enqueue(const DecodedLayers & layers, int n_layers, int left_out, Stream stream) {
    layers.find_sight(stream);
    const std::vector<DecodedLayers::Launch> launches = layers.launches();
    for (int layer = 0; layer < n_layers; ++layer) {
        for (int i = 0; i < static_cast<int>(launches.size()); ++i) {
            if (i != left_out) {
                launches[static_cast<size_t>(i)].run(layer, stream);
            }
        }
    }
}

void run(const DecodedLayers & layers, int n_layers, Stream stream) {
    enqueue(layers, n_layers, -1, stream);
    must(stream_sync(stream) && check());
}

void check_replay(RowsOf rows) {
    const LayersShape shape = {64, 2, 4, 2, 1000, CellType::q8_0, rows, 50.0f};
    const DecodedLayers layers(shape, 4);
    const TestStream stream;
    run(layers, shape.n_layers, stream);
    const std::vector<float> told = layers.outputs();
    const std::vector<int32_t> lengths = layers.list_lengths();
    for (const int n : lengths) {
        CHECK(n > 80 && n < shape.n_cells, "%d rows are listed", n);
    }
    for (int left_out = -1; left_out < static_cast<int>(layers.launches().size()); ++left_out) {
        Recording recording(stream);
        enqueue(layers, shape.n_layers, left_out, stream);
        CHECK(recording.end() && recording.launch(), "%d left out: %s", left_out, last_error());
        must(stream_sync(stream) && check());
        // all that is left out has run before with the same inputs, but for what depends on the layer
        const bool same = layers.outputs() == told && layers.list_lengths() == lengths;
        const std::string name = left_out < 0 ? "nothing" : layers.launches()[static_cast<size_t>(left_out)].name;
        CHECK(same, "a replay without %s gives something else", name.c_str());
    }
}

// A resolution that lists every row for certain.
void check_all_rows() {
    constexpr LayersShape kShape = {128, 2, 2, 1, 700, CellType::f16, RowsOf::vram, 1e9f};
    const DecodedLayers layers(kShape, 4);
    const TestStream stream;
    run(layers, kShape.n_layers, stream);
    for (const int n : layers.list_lengths()) {
        CHECK(n == kShape.n_cells, "%d rows are listed", n);
    }
    const std::vector<float> got = layers.outputs(), want = layers.reference();
    for (size_t i = 0; i < want.size(); ++i) {
        CHECK(std::fabs(got[i] - want[i]) < 1e-4f, "output %zu is %g, not %g", i, got[i], want[i]);
    }
}

void check_copies() {
    LayersShape shape = {64, 2, 4, 3, 1000, CellType::q8_0, RowsOf::home, 50.0f};
    const TestStream stream;
    const DecodedLayers at_home(shape, 4);
    run(at_home, shape.n_layers, stream);
    shape.rows = RowsOf::kept;
    const DecodedLayers kept(shape, 4);
    std::vector<size_t> crossed;
    for (const bool forgets : {true, false, true, false}) {
        const size_t before = crossed_bytes();
        if (forgets) {
            kept.forget_copies(stream);
        }
        run(kept, shape.n_layers, stream);
        crossed.push_back(crossed_bytes() - before);
        CHECK(kept.outputs() == at_home.outputs(), "copies of rows change attention, forgotten: %d", forgets);
    }
#if !defined(__CUDACC__)
    // rows of open groups and the store's own cross the link in any case
    const size_t brought = crossed[0] - crossed[1];
    const std::vector<int32_t> lengths = kept.list_lengths();
    const size_t listed = static_cast<size_t>(std::accumulate(lengths.begin(), lengths.end(), 0)) * 3 * 2 * 68;
    CHECK(crossed[2] == crossed[0] && crossed[3] == crossed[1], "%zu, %zu, %zu, %zu bytes cross the link", crossed[0], crossed[1], crossed[2], crossed[3]);
    CHECK(brought > listed / 2 && brought <= listed + listed / 4, "%zu bytes are brought for lists of %zu", brought, listed);
#endif
}

float median_of(const Recording & recording, Stream stream) {
    constexpr int kRuns = 30;
    Event from, to;
    must(event_create(&from, true) && event_create(&to, true));
    std::vector<float> times;
    for (int i = 0; i < kRuns; ++i) {
        event_record(from, stream);
        must(recording.launch());
        event_record(to, stream);
        must(event_sync(to));
        times.push_back(event_ms(from, to));
    }
    event_destroy(from);
    event_destroy(to);
    return median(times);
}

template <class Enqueue>
float time_of(Stream stream, const Enqueue & enqueue_all) {
    Recording recording(stream);
    enqueue_all();
    must(recording.end());
    return median_of(recording, stream);
}

int bench(int n_cells) {
    Device device;
    if (n_cells < 1024 || !has_device(device)) {
        return 1;
    }
    const TestStream stream;
    constexpr int kLayers = 32, kLaunches = 4;
    std::printf("%s, %d layers, %d cells\n", device.name.c_str(), kLayers, n_cells);
    const float empty = time_of(stream, [&] {
        for (int i = 0; i < kLayers * kLaunches; ++i) {
            launch(layers_bench::nothing, Grid{1}, 32, 0, stream);
        }
    });
    std::printf("%-28s %9.4f ms\n", "empty launches", empty);
    const struct {
        const char * name;
        RowsOf rows;
        bool forgets;
    } kinds[] = {
        {"8B, q8_0, rows in VRAM", RowsOf::vram, false},
        {"8B, q8_0, rows at home", RowsOf::home, false},
        {"8B, q8_0, all copies found", RowsOf::kept, false},
        {"8B, q8_0, all rows brought", RowsOf::kept, true},
    };
    for (const auto & kind : kinds) {
        const DecodedLayers layers({128, 8, 4, kLayers, n_cells, CellType::q8_0, kind.rows, 500.0f}, std::max(device.n_sm, 1));
        run(layers, kLayers, stream);
        const auto time_without = [&](int left_out) {
            return time_of(stream, [&] {
                if (kind.forgets) {
                    layers.forget_copies(stream);
                }
                enqueue(layers, kLayers, left_out, stream);
            });
        };
        const float all = time_without(-1);
        const std::vector<int32_t> lengths = layers.list_lengths();
        const int n_read = std::accumulate(lengths.begin(), lengths.end(), 0) / static_cast<int>(lengths.size());
        std::printf("%-28s %9.4f ms, %d rows a head\n", kind.name, all, n_read);
        const std::vector<DecodedLayers::Launch> launches = layers.launches();
        for (int i = 0; i < static_cast<int>(launches.size()); ++i) {
            const float without = time_without(i);
            std::printf("  without %-18s %9.4f ms, %9.4f less\n", launches[static_cast<size_t>(i)].name, without, all - without);
        }
    }
    return 0;
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc == 3 && std::strcmp(argv[1], "--bench") == 0) {
        return bench(std::atoi(argv[2]));
    }
    for (const RowsOf rows : {RowsOf::home, RowsOf::kept}) {
        check_replay(rows);
    }
    check_all_rows();
    check_copies();
    return finish();
}
