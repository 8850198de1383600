// The emulated device itself: what it draws from a seed, what streams and recordings keep in order, and what it refuses. What ends the process has a program of
// its own; the kernels' programs, and the barriers that tests/native/test_device.py leaves out of them, show the rest.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <thread>

#include <unistd.h>

#include "device_array.h"
#include "emulator/emulator.h"

using namespace edgekv::gpu;
using namespace test;
namespace emulator = edgekv::gpu::emulator;

namespace {

struct TestEvent {
    TestEvent() { event_create(&e); }
    ~TestEvent() { event_destroy(e); }
    operator Event() const { return e; }
    Event e = nullptr;
};

__global__ void put(int * p, int value) { *p = value; }

__global__ void append(int * list, int value) {
    list[1 + list[0]] = value;
    list[0] += 1;
}

__global__ void note_order(int * order, int * next, int * visits) {
    if (threadIdx.x == 0) {
        const int block = static_cast<int>((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x);
        order[atomicAdd(next, 1)] = block;
        atomicAdd(visits + block, 1);
    }
}

__global__ void note_time(int * clock, int * times) {
    if (threadIdx.x == 0) {
        times[blockIdx.x] = atomicAdd(clock, 1);
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

void with_seeds(uint64_t n, void (*check)(uint64_t seed)) {
    for (uint64_t seed = 1; seed <= n; ++seed) {
        emulator::set_seed(seed);
        const int before = failures;
        check(seed);
        CHECK(failures == before, "with seed %d", static_cast<int>(seed));
    }
}

// ---- launches ----------------------------------------------------------------------------------------------------------------

void check_blocks() {
    static std::set<std::vector<int>> orders;
    with_seeds(8, [](uint64_t) {
        DeviceArray<int> order(30), next(1), visits(30);
        launch(note_order, Grid{5, 3, 2}, 32, 0, nullptr, order.data(), next.data(), visits.data());
        orders.insert(order.get());
        CHECK(visits.get() == std::vector<int>(30, 1));
    });
    CHECK(orders.size() > 4);
    DeviceArray<int> out(64);
    launch(read_shared, Grid{2}, 64, 256, nullptr, out.data());  // the second block does not see what the first left
    CHECK(out.get()[0] == static_cast<int>(0xcdcdcdcd) && out.get()[63] == static_cast<int>(0xcdcdcdcd));
    launch(read_static, Grid{2}, 64, 0, nullptr, out.data());
    CHECK(out.get()[0] == 0 && out.get()[63] == 0);
}

// Blocks of two streams' launches take turns, in an order of the seed; of one stream they do not.
void check_open_launches() {
    static std::set<std::vector<int>> seen;
    static int n_mixed = 0;
    with_seeds(8, [](uint64_t seed) {
        Device card;
        CHECK(device(0, card) && card.n_sm == (seed % 3 == 0 ? 1 : seed % 3 == 1 ? 28 : 132));
        const TestStream a, b;
        DeviceArray<int> clock(1), first(100), second(100), third(100);
        for (const auto & [stream, times] : {std::pair{&a, &first}, {&a, &second}, {&b, &third}}) {
            launch(note_time, Grid{100}, 32, 0, *stream, clock.data(), times->data());
        }
        must(stream_sync(a) && stream_sync(b));
        const std::vector<int> of_a = first.get(), then = second.get(), of_b = third.get();
        CHECK(*std::max_element(of_a.begin(), of_a.end()) < *std::min_element(then.begin(), then.end()));
        n_mixed += *std::max_element(of_b.begin(), of_b.end()) - *std::min_element(of_b.begin(), of_b.end()) > 99;
        seen.insert(of_b);
    });
    CHECK(seen.size() > 4 && n_mixed > 3, "%zu orders, %d mixed", seen.size(), n_mixed);
}

// ---- streams -----------------------------------------------------------------------------------------------------------------

// Two streams append to a list; the second waits for the middle of the first.
void check_streams() {
    static std::set<std::vector<int>> orders;
    with_seeds(60, [](uint64_t) {
        const TestStream a, b;
        const TestEvent event;
        DeviceArray<int> list(9);
        for (int i = 0; i < 4; ++i) {
            launch(append, Grid{}, 1, 0, a, list.data(), i);
            CHECK(i != 1 || event_record(event, a));
        }
        launch(append, Grid{}, 1, 0, b, list.data(), 10);
        CHECK(event_wait(b, event) && event_record(event, a));  // again: the wait means the record before it
        launch(append, Grid{}, 1, 0, b, list.data(), 11);
        CHECK(stream_sync(a) && stream_sync(b));
        const std::vector<int> seen = list.get();
        const auto at = [&](int value) { return std::find(seen.begin() + 1, seen.end(), value); };
        CHECK(seen[0] == 6 && at(0) < at(1) && at(1) < at(2) && at(2) < at(3) && at(10) < at(11) && at(1) < at(11));
        orders.insert(seen);
    });
    CHECK(orders.size() > 6, "%zu", orders.size());
}

// A queued operation sees the arguments of then, and the pinned memory of when it runs.
void check_arguments() {
    static int n_at_once = 0;
    with_seeds(60, [](uint64_t) {
        const TestStream s;
        const TestEvent event;
        DeviceArray<int> two(2), pinned(std::vector<int>{0}, true);
        int value = 1;
        launch(put, Grid{}, 1, 0, s, two.data(), value);
        value = 2;
        CHECK(copy_async(two.data() + 1, &value, sizeof(int), s));  // not pinned: counts as it is now
        value = 3;
        CHECK(copy_async(pinned.data(), two.data(), sizeof(int), s) && event_record(event, s));
        n_at_once += *pinned.data() == 1;
        CHECK(event_sync(event) && *pinned.data() == 1 && (two.get() == std::vector<int>{1, 2}));
    });
    CHECK(n_at_once > 0 && n_at_once < 30, "%d", n_at_once);
}

// Nothing else runs than what somebody waits for, for some seed; everything before a release of device memory, and nothing before one of pinned.
void check_queues() {
    static bool left = false;
    with_seeds(20, [](uint64_t) {
        const TestStream a, b;
        DeviceArray<int> one(1);
        launch(put, Grid{}, 1, 0, a, one.data(), 1);
        CHECK(stream_sync(b));
        const size_t n_before = emulator::n_queued();
        left = left || n_before == 1;
        { const DeviceArray<int> host(1, true); }
        CHECK(emulator::n_queued() == n_before);
        { const DeviceArray<int> other(1); }
        CHECK(emulator::n_queued() == 0);
    });
    CHECK(left);
}

// ---- recordings --------------------------------------------------------------------------------------------------------------

void check_graphs() {
    with_seeds(10, [](uint64_t) {
        const TestStream main, side;
        const TestEvent fork, join;
        DeviceArray<int> list(16);
        uint64_t id = 0;
        CHECK(emulator::capture_begin(main, 42) && stream_capturing(main, &id) && id == 42 && !stream_capturing(side, &id));
        launch(append, Grid{}, 1, 0, main, list.data(), 1);
        CHECK(event_record(fork, main) && event_wait(side, fork) && stream_capturing(side, &id));
        launch(append, Grid{}, 1, 0, side, list.data(), 2);
        CHECK(event_record(join, side) && event_wait(main, join));
        int n_called = 0;
        emulator::enqueue_host(main, [&n_called, p = list.data()] { n_called += p[p[0]] == 2; });  // behind what was joined
        launch(append, Grid{}, 1, 0, main, list.data(), 3);
        void * graph = emulator::capture_end(main);
        CHECK(graph && !stream_capturing(side, &id) && emulator::n_queued() <= 1 && list.get()[0] == 0);
        CHECK(emulator::graph_launch(graph, main) && emulator::graph_launch(graph, main) && stream_sync(main));
        CHECK((list.get() == std::vector<int>{6, 1, 2, 3, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0}) && n_called == 2);
        emulator::graph_destroy(graph);
    });
}

// As CUDA does: a stream that was forked has to be joined again before the recording ends, with all that it did; and what cannot be
// recorded spoils the whole recording. In any case the streams are free afterwards.
void check_refused_graphs() {
    const TestStream main, side, third;
    const TestEvent fork, join, last, outside;
    DeviceArray<int> list(16);
    event_record(outside, side);
    const auto refuses = [&](const char * sentence, auto && nodes) {
        CHECK(emulator::capture_begin(main, 1), "%s", sentence);
        launch(append, Grid{}, 1, 0, main, list.data(), 1);
        nodes();
        CHECK(!emulator::capture_end(main) && std::strstr(last_error(), sentence), "%s", sentence);
        CHECK(!stream_capturing(main, nullptr) && !stream_capturing(side, nullptr) && !stream_capturing(third, nullptr), "%s", sentence);
        CHECK(stream_sync(main) && stream_sync(side) && list.get()[0] == 0, "%s", sentence);
    };
    const auto forked = [&] { CHECK(event_record(fork, main) && event_wait(side, fork)); };
    const auto works = [&] { launch(append, Grid{}, 1, 0, side, list.data(), 2); };

    refuses("was not joined", forked);
    refuses("was not joined", [&] { forked(), works(), event_record(join, side); });
    refuses("was not joined", [&] { forked(), event_record(join, side), event_wait(main, join), works(); });  // it did something after it was joined
    refuses("was not joined", [&] { forked(), event_record(join, side), event_wait(third, join); });          // by a third one, which was not joined itself
    refuses("cannot wait for an event outside it", [&] { CHECK(!event_wait(main, outside)); });
    refuses("cannot be waited for", [&] { CHECK(!stream_sync(main)); });
    refuses("recorded inside a graph", [&] { CHECK(!event_wait(main, join)); });  // of a recording that has ended

    CHECK(emulator::capture_begin(main, 1));  // joined through a third stream
    forked(), works();
    CHECK(event_record(join, side) && event_wait(third, join) && event_record(last, third) && event_wait(main, last));
    void * graph = emulator::capture_end(main);
    CHECK(graph);
    emulator::graph_destroy(graph);
}

// ---- memory and refusals -----------------------------------------------------------------------------------------------------

void check_memory() {
    DeviceArray<char> own(1000), other(std::vector<char>(1000, 7), true);
    char * const pinned = other.data();
    CHECK(own.get() == std::vector<char>(1000, 0) && reinterpret_cast<uintptr_t>(own.data()) % 256 == 0);
    CHECK(is_pinned(pinned) && is_pinned(pinned + 999) && !is_pinned(&own) && !is_pinned(own.data()));
    CHECK(!copy(own.data() + 900, pinned, 101) && !copy(own.data(), pinned + 1, 1000) && !copy(own.data() - 1, pinned, 2));
    CHECK(!zero_async(own.data(), 1001, nullptr) && std::strstr(last_error(), "not all in one allocation") && check());
    emulator::check_guards();
    other = DeviceArray<char>(1, true);  // released
    CHECK(!is_pinned(pinned) && !copy(own.data(), pinned, 1));
    Device info;
    CHECK(device_count() == 1 && device(0, info) && info.total_bytes - info.free_bytes == 1000 && info.maps_host && info.has_kernels);
    CHECK(!device(1, info) && !use_device(1) && use_device(0));
}

__global__ void add_up(const char * p, int n, int * out) {
    for (int i = 0; i < n; ++i) {
        *out += p[i];
    }
}

// Parts of the caller's memory are pinned by and by: a kernel reads across them, a copy does not. The host reaches all of it at any time.
void check_pinning() {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), n = 16 * page;
    const std::unique_ptr<char, decltype(&std::free)> memory(static_cast<char *>(std::aligned_alloc(page, n)), std::free);
    char * const home = memory.get();
    std::memset(home, 1, n);
    CHECK(pin(home + page, 2 * page, home, n) && pin(home + 3 * page, page, home, n));
    CHECK(is_pinned(home + page) && is_pinned(home + 4 * page - 1) && !is_pinned(home + page - 1) && !is_pinned(home + 4 * page));
    CHECK(!pin(home + 2 * page, page, home, n) && !pin(home, 2 * page, home, n) && !pin(home + 5 * page + 1, page, home, n));
    CHECK(!pin(home + 5 * page, 1, home, n) && !pin(home + 15 * page, 2 * page, home, n));

    DeviceArray<int> sum(1);
    launch(add_up, Grid{}, 1, 0, nullptr, home + page, static_cast<int>(3 * page), sum.data());
    emulator::enqueue_host(nullptr, [&] { std::thread([&] { home[0] = home[n - 1] = 2; }).join(); });
    CHECK(stream_sync(nullptr) && sum.get()[0] == static_cast<int>(3 * page) && home[0] == 2);

    DeviceArray<char> there(n);
    const auto copies = [&](size_t first, size_t end) { return copy(there.data(), home + first, end - first) && copy(home + first, there.data(), end - first); };
    CHECK(copies(page, 3 * page) && copies(3 * page, 4 * page) && copies(0, page) && copies(4 * page, n));
    CHECK(!copies(page, 3 * page + 1) && !copies(page - 1, page + 1) && !copies(4 * page - 1, 4 * page + 1) && !copies(0, n));

    emulator::Limits few;
    few.pinned_bytes = 4 * page;
    emulator::set_limits(few);
    CHECK(!pin(home + 8 * page, 2 * page, home, n) && std::strstr(last_error(), "no pinned memory for 1 MiB more") && pin(home + 8 * page, page, home, n));
    emulator::set_limits({});
    for (const size_t first : {page, 3 * page, 8 * page}) {
        unpin(home + first);
    }
    CHECK(!is_pinned(home + page) && copies(0, n));
}

// test_engine shows what comes of the other limits.
void check_refusals() {
    emulator::Limits few;
    few.device_bytes = 4 << 20;
    emulator::set_limits(few);
    DeviceArray<char> most(3 << 20);
    void * p = nullptr;
    CHECK(!alloc(&p, 2 << 20) && std::strcmp(last_error(), "the GPU has no memory for 2 MiB more; 1 MiB are free") == 0);
    emulator::set_limits({});
    const auto refused = [&](Grid grid, unsigned threads, size_t shared) {
        launch(put, grid, threads, shared, nullptr, reinterpret_cast<int *>(most.data()), 1);
        return !check() && check();
    };
    CHECK(refused(Grid{0}, 32, 0) && refused(Grid{1, 70000}, 32, 0) && refused(Grid{}, 1025, 0) && refused(Grid{}, 0, 0));
    CHECK(refused(Grid{}, 32, 100 * 1024) && most.get()[0] == 0);
}

}  // namespace

int main() {
    check_blocks();
    check_open_launches();
    check_streams();
    check_arguments();
    check_queues();
    check_graphs();
    check_refused_graphs();
    check_memory();
    check_pinning();
    check_refusals();
    return finish();
}
