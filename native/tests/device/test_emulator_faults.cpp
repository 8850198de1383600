// What ends the process on the emulated device: wrong collectives and barriers, accesses out of reach.
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#include "device_array.h"
#include "dies.h"
#include "cuda/gpu.h"

using namespace edgekv::gpu;
using namespace test;

namespace {

constexpr unsigned kAll = 0xffffffffu;

enum class Wrong {
    two_collectives, left_early, barrier_in_branch, two_barriers, other_mask, own_bit, inactive_lane, write_shared, write_behind,
    write_far, read_freed
};

__global__ void wrong(Wrong what, char * p, int n) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    int value = lane;
    switch (what) {
        case Wrong::two_collectives: value = lane < 16 ? __shfl_xor_sync(kAll, value, 1) : __any_sync(kAll, 1); break;
        case Wrong::left_early:
            if (lane == 3) {
                return;
            }
            value = __shfl_xor_sync(kAll, value, 1);
            break;
        case Wrong::barrier_in_branch:
            if (thread < 40) {
                __syncthreads();
            }
            break;
        case Wrong::two_barriers:
            if (thread < 40) {
                __syncthreads();
            } else {
                __syncthreads();
            }
            break;
        case Wrong::other_mask: value = __shfl_xor_sync(lane < 16 ? 0x1ffffu : 0xffff0000u, value, 1); break;
        case Wrong::own_bit: value = __shfl_sync(1u, value, 0); break;
        case Wrong::inactive_lane:
            if (lane < 16) {
                value = __shfl_sync(0xffffu, value, 20);
            }
            break;
        case Wrong::write_shared: shared_memory()[thread == 0 ? n : 0] = 1; break;
        case Wrong::write_behind: p[thread == 0 ? n : 0] = 1; break;
        case Wrong::write_far: p[thread == 0 ? n + 4096 : 0] = 1; break;
        case Wrong::read_freed: value = p[lane]; break;
    }
    p[0] = static_cast<char>(value);
}

__global__ void deep_stack(char * p) {
    volatile char local[300 * 1024];
    for (int i = 0; i < 300 * 1024; i += 512) {
        local[i] = p[0];
    }
    p[0] = local[512];
}

// The block that begins last waits for the one before it, or for one that cannot have begun.
__global__ void await(unsigned * begun, bool by_index) {
    const unsigned turn = by_index ? blockIdx.x : atomicAdd(begun, 1u);
    while (turn > 0 && look(begun + turn) == 0) {
    }
    atomicAdd(begun + turn + 1, 1u);
}

__global__ void write_one(int * p) { *p = 1; }

void run_wrong(Wrong what) {
    char * p = nullptr;
    const int n = 1000;
    alloc(reinterpret_cast<void **>(&p), n);
    if (what == Wrong::read_freed) {
        free_device(p);
    }
    launch(wrong, Grid{}, 64, 1000, nullptr, what, p, n);
    stream_sync(nullptr);
    free_device(p);
}

[[maybe_unused]] void check_faults() {
    CHECK(dies("at different places", [] { run_wrong(Wrong::two_collectives); }));
    CHECK(dies("has left the kernel", [] { run_wrong(Wrong::left_early); }));
    CHECK(dies("have left the kernel", [] { run_wrong(Wrong::barrier_in_branch); }) ||
          dies("has left the kernel", [] { run_wrong(Wrong::barrier_in_branch); }));
    CHECK(dies("at different barriers", [] { run_wrong(Wrong::two_barriers); }));
    CHECK(dies("0001ffff", [] { run_wrong(Wrong::other_mask); }));
    CHECK(dies("the thread itself is missing", [] { run_wrong(Wrong::own_bit); }));
    CHECK(dies("takes no part", [] { run_wrong(Wrong::inactive_lane); }));
    CHECK(dies("dynamic shared memory: a write at byte 1000 of 1000", [] { run_wrong(Wrong::write_shared); }));
    CHECK(dies("device memory: a write at byte 1000 of an allocation of 1000", [] { run_wrong(Wrong::write_behind); }));
    CHECK(dies("byte 5096 of an allocation of 1000 bytes of device memory, in block", [] { run_wrong(Wrong::write_far); }));
    CHECK(dies("of device memory that was released (1000 bytes)", [] { run_wrong(Wrong::read_freed); }));
    CHECK(dies("local arrays are too large", [] {
        DeviceArray<char> one(1);
        launch(deep_stack, Grid{}, 32, 0, nullptr, one.data());
        stream_sync(nullptr);
    }));
    const auto wait = [](bool by_index) {
        DeviceArray<unsigned> begun(40);
        launch(await, Grid{30}, 1, 0, nullptr, begun.data(), by_index);
        must(stream_sync(nullptr));
    };
    CHECK(dies("waits for another block, which has not begun", [&] { wait(true); }));
    wait(false);
    CHECK(dies("0 of 32 threads waited for that", [] {
        DeviceArray<int> one(1);
        launch_behind(write_one, Grid{}, 32, 0, nullptr, one.data());
        stream_sync(nullptr);
    }));
    CHECK(dies("outside a kernel", [] { __syncthreads(); }));
    CHECK(dies("no device memory begins at", [] {
        char * p = nullptr;
        alloc(reinterpret_cast<void **>(&p), 64);
        free_device(p + 16);
    }));
}

// Device memory is out of the host's reach while nothing runs, where that is asked for (which takes a process of its own).
int host_access() {
    int * p = nullptr;
    alloc(reinterpret_cast<void **>(&p), sizeof(int));
    launch(write_one, Grid{}, 32, 0, nullptr, p);
    CHECK(stream_sync(nullptr));
    const int value = *reinterpret_cast<volatile int *>(p);
    return value;
}

[[maybe_unused]] void check_strict(const char * program) {
    CHECK(dies("by the host, which cannot reach it", [program] {
        setenv("EDGEKV_EMULATOR_STRICT", "1", 1);
        execl(program, program, "--host-access", static_cast<char *>(nullptr));
    }));
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc > 1 && std::strcmp(argv[1], "--host-access") == 0) {
        return host_access();
    }
#if !defined(EDGEKV_RACECHECK)  // which has words of its own for most of these
    check_faults();
    check_strict(argv[0]);
#endif
    return finish();
}
