// What blocks of a launch pass on to each other: fences and tickets. The race check finds each barrier and fence that is missing.
#include "cuda/gpu.h"

#include "device_array.h"
#include "dies.h"

using namespace edgekv::gpu;
using namespace test;

namespace {

// Blocks leave a number for each of their threads; the last block sums them up.
enum class Left { nothing, first_barrier, first_fence, second_fence, second_barrier };

__global__ void last_sums(int * numbers, unsigned * ticket, int * sum, Left left) {
    EDGEKV_SHARED(bool, last);
    numbers[blockIdx.x * blockDim.x + threadIdx.x] = 1;
    if (left != Left::first_barrier) {
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        if (left != Left::first_fence) {
            __threadfence();
        }
        last = atomicInc(ticket, gridDim.x - 1) + 1 == gridDim.x;
        if (left != Left::second_fence) {
            __threadfence();
        }
    }
    if (left != Left::second_barrier) {
        __syncthreads();
    }
    if (last && threadIdx.x < 32) {
        int mine = 0;
        for (unsigned i = threadIdx.x; i < gridDim.x * blockDim.x; i += 32) {
            mine += numbers[i];
        }
        mine = __reduce_add_sync(~0u, mine);
        if (threadIdx.x == 0) {
            *sum = mine;
        }
    }
}

// What a block was passed on it passes on itself.
__global__ void relay(int * numbers, unsigned * tickets, int * sum, bool fence) {
    const unsigned pair = blockIdx.x / 2;
    numbers[blockIdx.x] = 1;
    __threadfence();
    if (atomicInc(&tickets[1 + pair], 1) == 0) {
        return;
    }
    if (fence) {
        __threadfence();
    }
    if (atomicInc(&tickets[0], gridDim.x / 2 - 1) + 1 == gridDim.x / 2) {
        __threadfence();
        int all = 0;
        for (unsigned i = 0; i < gridDim.x; ++i) {
            all += numbers[i];
        }
        *sum = all;
    }
}

void check_passing_on() {
    DeviceArray<int> numbers(640), sum(1);
    DeviceArray<unsigned> tickets(6);
    const auto run = [&](Left left) {
        launch(last_sums, Grid{10}, 64, 0, nullptr, numbers.data(), tickets.data(), sum.data(), left);
        must(stream_sync(nullptr));
    };
#if defined(EDGEKV_RACECHECK)
    for (const Left left : {Left::first_barrier, Left::first_fence, Left::second_fence, Left::second_barrier}) {
        CHECK(dies("memory", [&] { run(left); }), "%d", static_cast<int>(left));
    }
#endif
    for (int i = 0; i < 3; ++i) {  // the ticket is zero again
        sum.set({0});
        run(Left::nothing);
        CHECK(sum.get()[0] == 640);
    }
    const auto pass = [&](bool fence) {
        launch(relay, Grid{10}, 1, 0, nullptr, numbers.data(), tickets.data(), sum.data(), fence);
        must(stream_sync(nullptr));
    };
#if defined(EDGEKV_RACECHECK)
    CHECK(dies("a race on global memory", [&] { pass(false); }));
#endif
    pass(true);
    CHECK(sum.get()[0] == 10);
}

}  // namespace

int main() {
    check_passing_on();
    return finish();
}
