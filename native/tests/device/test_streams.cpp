// The emulated device's streams, memory and failures; and the rates measured on it.
#include <cmath>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "device_array.h"
#include "emulator/emulator.h"

#include "cuda/engine/rates.cu"
#include "cuda/kernels/read_device.cu"

using namespace edgekv::gpu;
using namespace test;
namespace emulator = edgekv::gpu::emulator;

namespace {

struct TestEvent {
    TestEvent() { event_create(&e); }
    ~TestEvent() { event_destroy(e); }
    Event e = nullptr;
};

// ---- streams -----------------------------------------------------------------------------------------------------------------

__global__ void put(int * p, int value) { *p = value; }

__global__ void append(int * list, int value) {
    list[1 + list[0]] = value;
    list[0] += 1;
}

// Two streams append to a list; the second waits for the middle of the first. Returns the list.
std::vector<int> interleave(uint64_t seed) {
    emulator::set_seed(seed);
    TestStream a, b;
    TestEvent event;
    DeviceArray<int> list(9);
    for (int i = 0; i < 4; ++i) {
        launch(append, Grid{}, 1, 0, a.s, list.data(), i);
        if (i == 1) {
            CHECK(event_record(event.e, a.s), "seed %d", static_cast<int>(seed));
        }
    }
    launch(append, Grid{}, 1, 0, b.s, list.data(), 10);
    CHECK(event_wait(b.s, event.e), "seed %d", static_cast<int>(seed));
    CHECK(event_record(event.e, a.s));  // again: the wait above means the record before it
    launch(append, Grid{}, 1, 0, b.s, list.data(), 11);
    CHECK(stream_sync(a.s) && stream_sync(b.s), "seed %d", static_cast<int>(seed));
    std::vector<int> seen = list.get();
    const auto at = [&](int value) {
        size_t i = 1;
        while (i < 7 && seen[i] != value) {
            ++i;
        }
        return i;
    };
    CHECK(seen[0] == 6, "seed %d", static_cast<int>(seed));
    for (int i = 0; i < 3; ++i) {
        CHECK(at(i) < at(i + 1), "seed %d", static_cast<int>(seed));
    }
    CHECK(at(10) < at(11) && at(1) < at(11), "seed %d", static_cast<int>(seed));
    return seen;
}

void check_streams() {
    std::set<std::vector<int>> orders;
    int n_at_once = 0;
    for (uint64_t seed = 1; seed <= 60; ++seed) {
        orders.insert(interleave(seed));

        // a queued operation sees the arguments of then, and the pinned memory of when it runs
        TestStream s;
        TestEvent event;
        DeviceArray<int> one(2);
        int * pinned = nullptr, value = 1;
        CHECK(alloc_pinned(reinterpret_cast<void **>(&pinned), sizeof(int)), "seed %d", static_cast<int>(seed));
        *pinned = 0;
        launch(put, Grid{}, 1, 0, s.s, one.data(), value);
        value = 2;
        CHECK(copy_async(one.data() + 1, &value, sizeof(int), s.s));  // not pinned: counts as it is now
        value = 3;
        CHECK(copy_async(pinned, one.data(), sizeof(int), s.s), "seed %d", static_cast<int>(seed));
        CHECK(event_record(event.e, s.s), "seed %d", static_cast<int>(seed));
        n_at_once += *pinned == 1;
        CHECK(event_sync(event.e) && *pinned == 1 && (one.get() == std::vector<int>{1, 2}), "seed %d", static_cast<int>(seed));
        free_pinned(pinned);

        // a chain over three streams: whoever waits for its end gets all of it
        TestStream t, u;
        TestEvent first, second;
        launch(put, Grid{}, 1, 0, s.s, one.data(), 5);
        event_record(first.e, s.s);
        event_wait(t.s, first.e);
        CHECK(copy_async(one.data() + 1, one.data(), sizeof(int), t.s), "seed %d", static_cast<int>(seed));
        event_record(second.e, t.s);
        event_wait(u.s, second.e);
        launch(put, Grid{}, 1, 0, u.s, one.data(), 6);
        CHECK(stream_sync(u.s) && (one.get() == std::vector<int>{6, 5}), "seed %d", static_cast<int>(seed));
        CHECK(zero_async(one.data(), 2 * sizeof(int), u.s) && event_record(first.e, u.s) && event_sync(first.e), "seed %d", static_cast<int>(seed));
        CHECK((one.get() == std::vector<int>{0, 0}), "seed %d", static_cast<int>(seed));
    }
    CHECK(orders.size() > 6 && n_at_once > 0 && n_at_once < 30);

    // nothing else runs than what somebody waits for, for some seed; everything before a release of device memory, and nothing before one of pinned
    bool left = false;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        emulator::set_seed(seed);
        TestStream a, b;
        DeviceArray<int> one(1);
        launch(put, Grid{}, 1, 0, a.s, one.data(), 1);
        CHECK(stream_sync(b.s), "seed %d", static_cast<int>(seed));
        left = left || emulator::n_queued() == 1;
        void * other = nullptr, * host = nullptr;
        const size_t n_before = emulator::n_queued();
        alloc_pinned(&host, 1);
        free_pinned(host);
        CHECK(emulator::n_queued() == n_before, "seed %d", static_cast<int>(seed));
        alloc(&other, 1);
        free_device(other);
        CHECK(emulator::n_queued() == 0, "seed %d", static_cast<int>(seed));
    }
    CHECK(left);
    TestEvent never;
    CHECK(event_sync(never.e) && event_wait(nullptr, never.e));
    uint64_t id = 0;
    CHECK(!stream_capturing(nullptr, &id));
}

void check_graphs() {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
        emulator::set_seed(seed);
        TestStream main, side;
        TestEvent fork, join, outside;
        DeviceArray<int> list(16);
        uint64_t id = 0;
        event_record(outside.e, side.s);
        CHECK(emulator::capture_begin(main.s, 42) && stream_capturing(main.s, &id) && id == 42 && !stream_capturing(side.s, &id),
              "seed %d", static_cast<int>(seed));
        launch(append, Grid{}, 1, 0, main.s, list.data(), 1);
        CHECK(event_record(fork.e, main.s) && event_wait(side.s, fork.e) && stream_capturing(side.s, &id), "seed %d", static_cast<int>(seed));
        launch(append, Grid{}, 1, 0, side.s, list.data(), 2);
        CHECK(event_record(join.e, side.s) && event_wait(main.s, join.e), "seed %d", static_cast<int>(seed));
        int n_called = 0;
        emulator::enqueue_host(main.s, [&n_called, p = list.data()] { n_called += p[p[0]] == 2; });  // behind what was joined
        launch(append, Grid{}, 1, 0, main.s, list.data(), 3);
        void * graph = emulator::capture_end(main.s);
        CHECK(graph && !stream_capturing(side.s, &id) && emulator::n_queued() <= 1 && list.get()[0] == 0, "seed %d", static_cast<int>(seed));
        CHECK(emulator::graph_launch(graph, main.s) && emulator::graph_launch(graph, main.s) && stream_sync(main.s),
              "seed %d", static_cast<int>(seed));
        CHECK((list.get() == std::vector<int>{6, 1, 2, 3, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0}) && n_called == 2, "seed %d", static_cast<int>(seed));
        emulator::graph_destroy(graph);
    }
}

// As CUDA does: a stream that was forked has to be joined again before the recording ends, with all that it did; and what cannot be
// recorded spoils the whole recording. In any case the streams are free afterwards.
void check_refused_graphs() {
    TestStream main, side, third;
    TestEvent fork, join, last, outside;
    DeviceArray<int> list(16);
    event_record(outside.e, side.s);
    const auto refuses = [&](const char * sentence, auto && nodes) {
        CHECK(emulator::capture_begin(main.s, 1), "%s", sentence);
        launch(append, Grid{}, 1, 0, main.s, list.data(), 1);
        nodes();
        void * graph = emulator::capture_end(main.s);
        CHECK(!graph && std::strstr(last_error(), sentence), "%s", sentence);
        CHECK(!stream_capturing(main.s, nullptr) && !stream_capturing(side.s, nullptr) && !stream_capturing(third.s, nullptr), "%s", sentence);
        CHECK(stream_sync(main.s) && stream_sync(side.s) && list.get()[0] == 0, "%s", sentence);
    };
    const auto forked = [&] { CHECK(event_record(fork.e, main.s) && event_wait(side.s, fork.e)); };

    refuses("was not joined", forked);
    refuses("was not joined", [&] {
        forked();
        launch(append, Grid{}, 1, 0, side.s, list.data(), 2);
        CHECK(event_record(join.e, side.s));
    });
    refuses("was not joined", [&] {  // it did something after it was joined
        forked();
        CHECK(event_record(join.e, side.s) && event_wait(main.s, join.e));
        launch(append, Grid{}, 1, 0, side.s, list.data(), 2);
    });
    refuses("was not joined", [&] {  // by a third stream, which was not joined itself
        forked();
        CHECK(event_record(join.e, side.s) && event_wait(third.s, join.e));
    });
    refuses("cannot wait for an event outside it", [&] { CHECK(!event_wait(main.s, outside.e)); });
    refuses("cannot be waited for", [&] { CHECK(!stream_sync(main.s)); });
    refuses("recorded inside a graph", [&] {  // of a recording that has ended
        CHECK(!event_wait(main.s, join.e));
    });

    // joined through a third stream
    CHECK(emulator::capture_begin(main.s, 1));
    forked();
    launch(append, Grid{}, 1, 0, side.s, list.data(), 2);
    CHECK(event_record(join.e, side.s) && event_wait(third.s, join.e));
    CHECK(event_record(last.e, third.s) && event_wait(main.s, last.e));
    void * graph = emulator::capture_end(main.s);
    CHECK(graph);
    emulator::graph_destroy(graph);
}

// ---- memory and failures -----------------------------------------------------------------------------------------------------

void check_memory() {
    DeviceArray<char> device_memory(1000);
    char * pinned = nullptr;
    CHECK(alloc_pinned(reinterpret_cast<void **>(&pinned), 1000) && pinned[999] == 0);
    CHECK(device_memory.get() == std::vector<char>(1000, 0) && reinterpret_cast<uintptr_t>(device_memory.data()) % 256 == 0);
    std::vector<char> host(1000);
    for (size_t i = 0; i < host.size(); ++i) {
        host[i] = pinned[i] = static_cast<char>(i);
    }
    CHECK(is_pinned(pinned) && is_pinned(pinned + 999) && !is_pinned(host.data()) && !is_pinned(device_memory.data()));

    CHECK(copy_async(device_memory.data() + 16, pinned + 30, 200, nullptr) && stream_sync(nullptr));
    const std::vector<char> seen = device_memory.get();
    for (size_t i = 0; i < 320; ++i) {
        CHECK(seen[i] == (i >= 16 && i < 216 ? static_cast<char>(i + 14) : 0), "byte %zu", i);
    }
    CHECK(!copy(device_memory.data() + 900, pinned, 101) && !copy(device_memory.data(), pinned + 1, 1000));
    CHECK(!copy(device_memory.data() - 1, pinned, 2));
    CHECK(!zero_async(device_memory.data(), 1001, nullptr));
    CHECK(std::strstr(last_error(), "not all in one allocation") && check());
    emulator::check_guards();

    const char * late = pinned;
    free_pinned(pinned);
    CHECK(!is_pinned(late) && !copy(device_memory.data(), late, 1));

    Device info;
    CHECK(device_count() == 1 && device(0, info) && info.total_bytes - info.free_bytes == 1000);
    CHECK(info.maps_host && info.has_kernels);
    CHECK(!device(1, info) && !use_device(1) && use_device(0));
}

void check_failures() {
    void * p = reinterpret_cast<void *>(1);
    emulator::Limits few;
    few.device_bytes = 4 << 20;
    emulator::set_limits(few);
    DeviceArray<char> most(3 << 20);
    CHECK(!alloc(&p, 2 << 20) && p == nullptr);
    CHECK(std::strcmp(last_error(), "the GPU has no memory for 2 MiB more; 1 MiB are free") == 0);

    few.pinned_bytes = 0;
    few.allocs_left = 1;
    emulator::set_limits(few);
    std::vector<char> host(100);
    CHECK(!alloc_pinned(&p, 100) && alloc(&p, 100) && std::strstr(last_error(), "pinned memory"));
    void * q = nullptr;
    CHECK(!alloc(&q, 100));
    free_device(p);

    few.copies_left = 2;
    emulator::set_limits(few);
    CHECK(copy(most.data(), host.data(), 100) && copy_async(most.data(), host.data(), 100, nullptr) && !copy(most.data(), host.data(), 100));

    few.copies_left = emulator::kNever;
    few.operations_left = 0;
    emulator::set_limits(few);
    launch(put, Grid{}, 1, 0, nullptr, reinterpret_cast<int *>(most.data()), 1);  // nobody hears of it yet
    CHECK(!stream_sync(nullptr) && std::strstr(last_error(), "failed") && check());
    emulator::set_limits({});
    CHECK(most.get()[0] == 0);

    const auto refused = [&](Grid grid, unsigned threads, size_t shared) {
        launch(put, grid, threads, shared, nullptr, reinterpret_cast<int *>(most.data()), 1);
        return !check() && check();
    };
    CHECK(refused(Grid{0}, 32, 0) && refused(Grid{1, 70000}, 32, 0) && refused(Grid{}, 1025, 0) && refused(Grid{}, 0, 0));
    CHECK(refused(Grid{}, 32, 100 * 1024) && most.get()[0] == 0);
}

// Two host threads with streams of their own.
void check_threads() {
    std::vector<std::thread> threads;
    std::vector<int> results(2);
    for (size_t t = 0; t < 2; ++t) {
        threads.emplace_back([&results, t] {
            TestStream s;
            int * list = nullptr;
            alloc(reinterpret_cast<void **>(&list), 101 * sizeof(int));
            for (int i = 0; i < 100; ++i) {
                launch(append, Grid{}, 1, 0, s.s, list, i);
                if (i % 10 == 0) {
                    stream_sync(s.s);
                }
            }
            stream_sync(s.s);
            copy(&results[t], list, sizeof(int));
            free_device(list);
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    CHECK(results[0] == 100 && results[1] == 100);
}

void check_rates() {
    Rates rates;
    CHECK(measure_rates(0, 0, rates) && !measure_rates(1, 0, rates));
    CHECK(measure_rates(0, size_t(1) << 30, rates));
    for (const double value : {rates.link_copy, rates.link_gather, rates.link_rows, rates.link_pageable, rates.vram, rates.dram, rates.launch_us}) {
        CHECK(std::isfinite(value) && value > 0.0);
    }
    emulator::Limits none;
    none.device_bytes = 1000;
    emulator::set_limits(none);
    CHECK(!measure_rates(0, 0, rates) && std::strstr(last_error(), "no memory for"));
    emulator::set_limits({});
}

}  // namespace

int main() {
    check_streams();
    check_graphs();
    check_refused_graphs();
    check_memory();
    check_failures();
    check_threads();
    check_rates();
    return finish();
}
