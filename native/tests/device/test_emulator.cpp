// The emulated device itself: what it draws from a seed, and what it finds. The kernels' own programs and the barriers that tests/native/test_device.py
// leaves out of them show the rest.
#include <algorithm>
#include <set>
#include <vector>

#include "device_array.h"
#include "dies.h"
#include "cuda/gpu.h"

using namespace edgekv::gpu;
using namespace test;
namespace emulator = edgekv::gpu::emulator;

namespace {

__global__ void note_order(int * order, int * next, int * visits) {
    if (threadIdx.x == 0) {
        const int block = static_cast<int>((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x);
        order[atomicAdd(next, 1)] = block;
        atomicAdd(visits + block, 1);
    }
}

__global__ void read_shared(int * out) {
    int * shared = reinterpret_cast<int *>(shared_memory());
    out[threadIdx.x] = shared[threadIdx.x];
    shared[threadIdx.x] = 7;
}

// The second block does not see what the first left: poison, where the kernel reads before it writes.
__global__ void read_static(int * out) {
    EDGEKV_SHARED(int[64], values);
    EDGEKV_SHARED(float, factor);
    out[threadIdx.x] = values[threadIdx.x] ^ __float_as_int(factor);
    __syncthreads();
    values[threadIdx.x] = 7;
    factor = 1.0f;
}

__global__ void write_behind_static(int at) {
    EDGEKV_SHARED(int[64], values);
    EDGEKV_SHARED(int[64], others);
    values[at] = 1;
    others[threadIdx.x] = 1;
}

// Reads what another block of the launch writes, and adds to a sum that all share.
[[maybe_unused]] __global__ void blocks_meet(int * values, int * sum) {
    if (threadIdx.x == 0) {
        values[blockIdx.x] = atomicAdd(sum, 1);
        values[blockIdx.x] += values[(blockIdx.x + 1) % gridDim.x];
    }
}

// Adds to each value: two launches that are open at once lose some.
[[maybe_unused]] __global__ void count_up(int * values) { values[blockIdx.x] += static_cast<int>(threadIdx.x == 0); }

__global__ void note_time(int * clock, int * times) {
    if (threadIdx.x == 0) {
        times[blockIdx.x] = atomicAdd(clock, 1);
    }
}

// Blocks of two streams' launches take turns, in an order of the seed; of one stream they do not.
void check_open_launches() {
    std::set<std::vector<int>> seen;
    int n_mixed = 0;
    for (uint64_t seed = 1; seed <= 8; ++seed) {
        emulator::set_seed(seed);
        Device card;
        CHECK(device(0, card) && card.n_sm == (seed % 3 == 0 ? 1 : seed % 3 == 1 ? 28 : 132), "seed %d", static_cast<int>(seed));
        Stream a = nullptr, b = nullptr;
        must(stream_create(&a) && stream_create(&b));
        DeviceArray<int> clock(1), first(100), second(100), third(100);
        launch(note_time, Grid{100}, 32, 0, a, clock.data(), first.data());
        launch(note_time, Grid{100}, 32, 0, a, clock.data(), second.data());
        launch(note_time, Grid{100}, 32, 0, b, clock.data(), third.data());
        must(stream_sync(a) && stream_sync(b));
        std::vector<int> of_a = first.get(), then = second.get(), of_b = third.get();
        CHECK(*std::max_element(of_a.begin(), of_a.end()) < *std::min_element(then.begin(), then.end()), "seed %d", static_cast<int>(seed));
        const int begin = *std::min_element(of_b.begin(), of_b.end()), end = *std::max_element(of_b.begin(), of_b.end());
        n_mixed += end - begin > 99;
        seen.insert(of_b);
        stream_destroy(a);
        stream_destroy(b);
    }
    CHECK(seen.size() > 4 && n_mixed > 3, "%zu orders, %d mixed", seen.size(), n_mixed);
}

void check_blocks() {
    std::set<std::vector<int>> orders;
    for (uint64_t seed = 1; seed <= 8; ++seed) {
        emulator::set_seed(seed);
        DeviceArray<int> order(30), next(1), visits(30);
        launch(note_order, Grid{5, 3, 2}, 32, 0, nullptr, order.data(), next.data(), visits.data());
        orders.insert(order.get());
        CHECK(visits.get() == std::vector<int>(30, 1), "seed %d", static_cast<int>(seed));
    }
    CHECK(orders.size() > 4);

#if !defined(EDGEKV_RACECHECK)  // which ends at such reads
    DeviceArray<int> out(64);
    launch(read_shared, Grid{2}, 64, 256, nullptr, out.data());  // the second block does not see what the first left
    CHECK(out.get()[0] == static_cast<int>(0xcdcdcdcd) && out.get()[63] == static_cast<int>(0xcdcdcdcd));
    launch(read_static, Grid{2}, 64, 0, nullptr, out.data());
    CHECK(out.get()[0] == 0 && out.get()[63] == 0);
#endif
}

#if defined(EDGEKV_RACECHECK)
void check_found_races() {
    DeviceArray<int> out(64), sum(1);
    const auto found = [&](const char * said, auto && run) {
        CHECK(dies(said, [&] {
            run();
            stream_sync(nullptr);
        }), "%s", said);
    };
    found("that no thread of its block has written", [&] { launch(read_shared, Grid{1}, 64, 256, nullptr, out.data()); });
    found("that no thread of its block has written", [&] { launch(read_static, Grid{1}, 64, 0, nullptr, out.data()); });
    found("a race on global memory", [&] { launch(blocks_meet, Grid{4}, 32, 0, nullptr, out.data(), sum.data()); });
    Stream a = nullptr, b = nullptr;
    must(stream_create(&a) && stream_create(&b));
    for (const bool joined : {false, true}) {
        const auto two = [&] {
            Event event = nullptr;
            must(event_create(&event));
            DeviceArray<int> values(1000);
            launch(count_up, Grid{1000}, 1, 0, a, values.data());
            must(event_record(event, a) && (!joined || event_wait(b, event)));
            launch(count_up, Grid{1000}, 1, 0, b, values.data());
            must(stream_sync(b) && stream_sync(a));
            CHECK(values.get() == std::vector<int>(1000, 2));
            event_destroy(event);
        };
        if (joined) {
            two();
        } else {
            found("a race on global memory", [&] {
                for (uint64_t seed = 1; seed <= 8; ++seed) {  // with some, the first launch runs before the second is there
                    emulator::set_seed(seed);
                    two();
                }
            });
        }
    }
    stream_destroy(a);
    stream_destroy(b);
}
#endif

}  // namespace

int main() {
    check_blocks();
    check_open_launches();
#if defined(EDGEKV_RACECHECK)
    check_found_races();
#else
    CHECK(dies("the shared variable of line", [] {
        launch(write_behind_static, Grid{1}, 64, 0, nullptr, 66);
        stream_sync(nullptr);
    }));
#endif
    return finish();
}
