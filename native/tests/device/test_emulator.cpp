// The emulated device itself: arithmetic, blocks and their threads, open launches and races.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "device_array.h"
#include "dies.h"
#include "cuda/gpu.h"

using namespace edgekv::gpu;
using namespace test;
namespace emulator = edgekv::gpu::emulator;

namespace {

constexpr unsigned kAll = 0xffffffffu;

// ---- arithmetic --------------------------------------------------------------------------------------------------------------

__int128 units(uint16_t h) {  // of 2^-24
    const int exponent = h >> 10 & 31;
    const __int128 mantissa = exponent ? 1024 + (h & 1023) : h & 1023;
    return (h & 0x8000 ? -mantissa : mantissa) * (static_cast<__int128>(1) << (exponent ? exponent - 1 : 0));
}

void check_halves() {
    for (unsigned bits = 0; bits < 65536; ++bits) {
        const uint16_t h = static_cast<uint16_t>(bits);
        const float f = __half2float(__ushort_as_half(h));
        if ((bits & 0x7fff) > 0x7c00) {
            CHECK(std::isnan(f) && __half_as_ushort(__float2half_rn(f)) == 0x7fff, "of %04x", bits);
            continue;
        }
        CHECK(__half_as_ushort(__float2half_rn(f)) == h, "of %04x", bits);
        if ((bits & 0x7c00) != 0x7c00) {
            CHECK(f == static_cast<float>(std::ldexp(static_cast<double>(units(h)), -24)), "of %04x", bits);
            const float next = std::nextafterf(f, INFINITY), middle = (f + __half2float(__ushort_as_half(h + 1))) / 2;
            CHECK(__half_as_ushort(__float2half_rn(next)) == h || bits == 0x8000, "of %04x", bits);
            if (bits < 0x7bff) {  // ties go to even; anything beyond them does not
                CHECK(__half_as_ushort(__float2half_rn(middle)) == (h & 1 ? h + 1 : h), "of %04x", bits);
                CHECK(__half_as_ushort(__float2half_rn(std::nextafterf(middle, INFINITY))) == h + 1, "of %04x", bits);
            }
        }
    }
    CHECK(__half_as_ushort(__float2half_rn(65519.996f)) == 0x7bff && __half_as_ushort(__float2half_rn(65520.0f)) == 0x7c00);
}

void check_bits() {
    CHECK(__dp4a(0x7f80ff01, static_cast<int>(0x807fff02), 10) == 10 + 127 * -128 + -128 * 127 + 1 + 2);
    CHECK(__byte_perm(0x33221100, 0x77665544, 0x7531) == 0x77553311 && __byte_perm(0x00800000, 0, 0xaaaa) == 0xffffffffu);
    CHECK(__clz(1) == 31 && __clz(0) == 32 && __ffs(8) == 4 && __popc(0xf0f0) == 8);
    CHECK(__float2int_rn(2.5f) == 2 && __float2int_rn(-1e20f) == INT32_MIN && __float2int_rn(NAN) == 0);
}

// ---- blocks ------------------------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(1024) sum_block(const int * in, int * out, int n) {
    EDGEKV_SHARED(int[32], part);
    int sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
        sum += in[i];
    }
    for (int d = 16; d > 0; d /= 2) {
        sum += __shfl_down_sync(kAll, sum, static_cast<unsigned>(d));
    }
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0;
        sum = static_cast<int>(__reduce_add_sync(kAll, sum));
        if (threadIdx.x == 0) {
            atomicAdd(out, sum);
        }
    }
}

__global__ void warp_functions(int * out) {
    const int lane = static_cast<int>(threadIdx.x);
    int * o = out + lane * 16;
    o[0] = __shfl_sync(kAll, lane, 5);
    o[1] = __shfl_sync(kAll, lane, 3, 8);
    o[2] = __shfl_xor_sync(kAll, lane, 16);
    o[3] = __shfl_up_sync(kAll, lane, 2);
    o[4] = __shfl_down_sync(kAll, lane, 3, 8);
    o[5] = static_cast<int>(__ballot_sync(kAll, lane % 3 == 0));
    o[6] = __any_sync(kAll, lane == 31) + 2 * __all_sync(kAll, lane < 31);
    o[7] = __reduce_add_sync(kAll, lane - 40);
    o[9] = static_cast<int>(__shfl_xor_sync(kAll, 1e300 * lane, 1) == 1e300 * (lane ^ 1));
    const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;  // the two halves of a warp go their own ways
    if (lane < 16) {
        o[10] = __shfl_sync(half, lane, 7);
    } else {
        o[10] = __shfl_sync(half, lane, 23);
    }
    __syncwarp();
}

__global__ void atomics(int * count, unsigned * bits, float * sums) {
    atomicAdd(count, 1);
    atomicOr(bits, 1u << threadIdx.x % 32);
    atomicAdd(sums, 0.5f);
}

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

__global__ void rotate(int * out, bool barrier) {
    EDGEKV_SHARED(int[64], values);
    values[threadIdx.x] = static_cast<int>(threadIdx.x) + 100 * static_cast<int>(blockIdx.x);
    if (barrier) {
        __syncthreads();
    }
    out[blockIdx.x * 64 + threadIdx.x] = values[(threadIdx.x + 1) % 64];
    if (barrier) {
        __syncthreads();
    }
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

// Lane i takes what lane i + 1 wrote.
[[maybe_unused]] __global__ void lanes_meet(int * out, bool barrier, bool shuffles) {
    int * shared = reinterpret_cast<int *>(shared_memory());
    const int lane = static_cast<int>(threadIdx.x);
    shared[lane] = lane;
    if (barrier) {
        __syncwarp();
    }
    const int other = shuffles ? __shfl_xor_sync(kAll, lane, 1) : 0;
    out[lane] = shared[(lane + 1) % 32] + other;
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
    std::vector<int> in(1541);
    int expected = 0;
    for (size_t i = 0; i < in.size(); ++i) {
        in[i] = static_cast<int>(i * i % 97);
        expected += in[i];
    }
    DeviceArray<int> values(in.size()), out(1024);
    values.set(in);
    for (unsigned threads = 32; threads <= 1024; threads += 96) {
        out.set({0});
        launch(sum_block, Grid{3}, threads, 0, nullptr, values.data(), out.data(), 1541);
        CHECK(out.get()[0] == 3 * expected, "%u threads", threads);
    }

    launch(warp_functions, Grid{}, 32, 0, nullptr, out.data());
    const std::vector<int> seen = out.get();
    for (int lane = 0; lane < 32; ++lane) {
        const int * o = &seen[static_cast<size_t>(lane) * 16];
        CHECK(o[0] == 5 && o[1] == (lane & 24) + 3 && o[2] == (lane ^ 16) && o[3] == (lane < 2 ? lane : lane - 2), "lane %d", lane);
        CHECK(o[4] == (lane % 8 < 5 ? lane + 3 : lane) && o[5] == 0x49249249 && o[6] == 1, "lane %d", lane);
        CHECK(o[7] == -784 && o[9] == 1 && o[10] == (lane < 16 ? 7 : 23), "lane %d", lane);
    }

    DeviceArray<int> count(1);
    DeviceArray<float> sums(1);
    DeviceArray<unsigned> bits(1);
    launch(atomics, Grid{5}, 96, 0, nullptr, count.data(), bits.data(), sums.data());
    CHECK(count.get()[0] == 480 && sums.get()[0] == 240.0f && bits.get()[0] == ~0u);

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
    launch(read_shared, Grid{2}, 64, 256, nullptr, out.data());  // the second block does not see what the first left
    CHECK(out.get()[0] == static_cast<int>(0xcdcdcdcd) && out.get()[63] == static_cast<int>(0xcdcdcdcd));
    launch(read_static, Grid{2}, 64, 0, nullptr, out.data());
    CHECK(out.get()[0] == 0 && out.get()[63] == 0);
#endif
}

#if defined(EDGEKV_RACECHECK)
void check_found_races() {
    DeviceArray<int> out(256), sum(1);
    const auto found = [&](const char * said, auto && run) {
        CHECK(dies(said, [&] {
            run();
            stream_sync(nullptr);
        }), "%s", said);
    };
    found("shared memory", [&] { launch(rotate, Grid{2}, 64, 0, nullptr, out.data(), false); });
    found("that no thread of its block has written", [&] { launch(read_shared, Grid{1}, 64, 256, nullptr, out.data()); });
    found("that no thread of its block has written", [&] { launch(read_static, Grid{1}, 64, 0, nullptr, out.data()); });
    found("a race on global memory", [&] { launch(blocks_meet, Grid{4}, 32, 0, nullptr, out.data(), sum.data()); });
    for (const bool shuffles : {false, true}) {  // they order no memory
        found("shared memory", [&] { launch(lanes_meet, Grid{1}, 32, 128, nullptr, out.data(), false, shuffles); });
        launch(lanes_meet, Grid{1}, 32, 128, nullptr, out.data(), true, shuffles);
        must(stream_sync(nullptr));
    }
    CHECK(out.get()[31] == 0 + 30);

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

#if !defined(EDGEKV_RACECHECK)
void check_races() {
    std::set<std::vector<int>> racy, right;
    for (uint64_t seed = 1; seed <= 10; ++seed) {
        emulator::set_seed(seed);
        for (const bool barrier : {false, true}) {
            DeviceArray<int> out(128);
            launch(rotate, Grid{2}, 64, 0, nullptr, out.data(), barrier);
            (barrier ? right : racy).insert(out.get());
        }
    }
    CHECK(right.size() == 1 && racy.size() > 3);
}
#endif

}  // namespace

int main() {
    check_halves();
    check_bits();
    check_blocks();
    check_open_launches();
#if defined(EDGEKV_RACECHECK)
    check_found_races();
#else
    check_races();
    CHECK(dies("the shared variable of line", [] {
        launch(write_behind_static, Grid{1}, 64, 0, nullptr, 66);
        stream_sync(nullptr);
    }));
#endif
    return finish();
}
