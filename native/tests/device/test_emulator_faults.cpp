// What ends the process on the emulated device: wrong collectives and barriers, accesses out of reach; where races are looked for, those.
#include <cstdlib>
#include <cstring>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device_array.h"

using namespace edgekv::gpu;
using namespace test;

namespace {

// Runs `run` in another process, and what it enqueued. A signal has to end that, once it had said `expected`.
template <class F>
void dies(const char * expected, F && run) {
    int ends[2];
    std::fflush(nullptr);
    CHECK(pipe(ends) == 0);
    const pid_t child = fork();
    if (child == 0) {
        const rlimit none{0, 0};
        setrlimit(RLIMIT_CORE, &none);
        dup2(ends[1], 2);
        close(ends[0]);
        run();
        stream_sync(nullptr);
        _exit(0);
    }
    close(ends[1]);
    std::string said;
    char buffer[1024];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
        said.append(buffer, static_cast<size_t>(n));
    }
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) && said.find(expected) != std::string::npos, "\"%s\"; status %d, it said: %s", expected, status, said.c_str());
}

#if !defined(EDGEKV_RACECHECK)  // which has words of its own for most of these

constexpr unsigned kAll = 0xffffffffu;

enum class Wrong {
    two_collectives, left_early, barrier_in_branch, two_barriers, other_mask, own_bit, inactive_lane, write_shared, write_behind, write_far, read_freed
};

constexpr struct {
    Wrong what;
    const char * said;
} kWrong[] = {
    {Wrong::two_collectives, "at different places"}, {Wrong::left_early, "has left the kernel"}, {Wrong::barrier_in_branch, "left the kernel"},
    {Wrong::two_barriers, "at different barriers"}, {Wrong::other_mask, "0001ffff"}, {Wrong::own_bit, "the thread itself is missing"},
    {Wrong::inactive_lane, "takes no part"}, {Wrong::write_shared, "dynamic shared memory: a write at byte 1000 of 1000"},
    {Wrong::write_behind, "device memory: a write at byte 1000 of an allocation of 1000"},
    {Wrong::write_far, "byte 5096 of an allocation of 1000 bytes of device memory, in block"},
    {Wrong::read_freed, "of device memory that was released (1000 bytes)"},
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

__global__ void write_behind_static(int at) {
    EDGEKV_SHARED(int[64], values);
    EDGEKV_SHARED(int[64], others);
    values[at] = 1;
    others[threadIdx.x] = 1;
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

void check_faults() {
    for (const auto & [what, said] : kWrong) {
        dies(said, [what = what] {
            constexpr int n = 1000;
            char * p = nullptr;
            alloc(reinterpret_cast<void **>(&p), n);
            if (what == Wrong::read_freed) {
                free_device(p);
            }
            launch(wrong, Grid{}, 64, 1000, nullptr, what, p, n);
            stream_sync(nullptr);
            free_device(p);
        });
    }
    dies("the shared variable of line", [] { launch(write_behind_static, Grid{1}, 64, 0, nullptr, 66); });
    const DeviceArray<char> one(sizeof(int));
    dies("local arrays are too large", [&] { launch(deep_stack, Grid{}, 32, 0, nullptr, one.data()); });
    const auto wait = [](bool by_index) {
        DeviceArray<unsigned> begun(40);
        launch(await, Grid{30}, 1, 0, nullptr, begun.data(), by_index);
        must(stream_sync(nullptr));
    };
    dies("waits for another block, which has not begun", [&] { wait(true); });
    wait(false);
    dies("0 of 32 threads waited for that", [&] { launch_behind(write_one, Grid{}, 32, 0, nullptr, reinterpret_cast<int *>(one.data())); });
    dies("outside a kernel", [] { __syncthreads(); });
    dies("no device memory begins at", [&] { free_device(one.data() + 16); });
    dies("of a home of 65536 bytes, which is not pinned, in block", [&] {  // the byte behind what is
        char * const home = static_cast<char *>(std::aligned_alloc(65536, 65536));
        must(pin(home, 32768, home, 65536));
        launch(write_one, Grid{}, 32, 0, nullptr, reinterpret_cast<int *>(home + 32768 - sizeof(int)));
        must(stream_sync(nullptr));
        launch(write_one, Grid{}, 32, 0, nullptr, reinterpret_cast<int *>(home + 32768));
    });
    dies("nothing that is pinned begins at", [&] { unpin(one.data()); });
}

// Device memory is out of the host's reach while nothing runs, where that is asked for (which takes a process of its own).
int host_access() {
    const DeviceArray<int> one(1);
    launch(write_one, Grid{}, 32, 0, nullptr, one.data());
    CHECK(stream_sync(nullptr));
    return *const_cast<volatile int *>(one.data());
}

void check_all(const char * program) {
    check_faults();
    dies("by the host, which cannot reach it", [program] {
        setenv("EDGEKV_EMULATOR_STRICT", "1", 1);
        execl(program, program, "--host-access", static_cast<char *>(nullptr));
    });
}

#else

__global__ void read_shared(int * out) { out[threadIdx.x] = reinterpret_cast<int *>(shared_memory())[threadIdx.x]; }

__global__ void read_static(int * out) {
    EDGEKV_SHARED(int[64], values);
    out[threadIdx.x] = values[threadIdx.x];
}

// Reads what another block of the launch writes, and adds to a sum that all share.
__global__ void blocks_meet(int * values, int * sum) {
    if (threadIdx.x == 0) {
        values[blockIdx.x] = atomicAdd(sum, 1);
        values[blockIdx.x] += values[(blockIdx.x + 1) % gridDim.x];
    }
}

// Adds to each value: two launches that are open at once lose some.
__global__ void count_up(int * values) { values[blockIdx.x] += static_cast<int>(threadIdx.x == 0); }

int host_access() { return 0; }

void check_all(const char *) {
    DeviceArray<int> out(64), sum(1);
    dies("that no thread of its block has written", [&] { launch(read_shared, Grid{1}, 64, 256, nullptr, out.data()); });
    dies("that no thread of its block has written", [&] { launch(read_static, Grid{1}, 64, 0, nullptr, out.data()); });
    dies("a race on global memory", [&] { launch(blocks_meet, Grid{4}, 32, 0, nullptr, out.data(), sum.data()); });
    const TestStream a, b;
    const auto two = [&](bool joined) {
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
    two(true);
    dies("a race on global memory", [&] {
        for (uint64_t seed = 1; seed <= 8; ++seed) {  // with some, the first launch runs before the second is there
            emulator::set_seed(seed);
            two(false);
        }
    });
}

#endif

}  // namespace

int main(int argc, char ** argv) {
    if (argc > 1 && std::strcmp(argv[1], "--host-access") == 0) {
        return host_access();
    }
    check_all(argv[0]);
    return finish();
}
