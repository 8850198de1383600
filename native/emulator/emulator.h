// The emulated device: CUDA C++ for the host compiler, and a device that runs it on one host thread.
//
// Blocks. Every thread of a block is a fiber; it runs until it waits for others (a barrier, a warp's collective) or ends. The blocks
// of a launch run one after another in a shuffled order, and so do the threads of a block between two barriers. A result that
// depends on the order therefore differs between seeds. Undefined behaviour on a GPU ends the process with a
// sentence: threads of a warp at different collectives, threads that left while others wait, a barrier that not all reach,
// a wait for a block that has not begun, writes past shared memory, accesses outside device memory (guard pages) or after its release. Shared memory is poisoned for each block.
// Where kernels are compiled with EDGEKV_RACECHECK, so do races (emulator_race.cpp).
//
// Streams. Operations are queued and run only when a caller waits or asks, in an order drawn from the seed, within CUDA's rules. A stream runs
// some blocks of a launch, then another stream runs some of its own. The seed also says how many multiprocessors there are.
//
// One lock protects everything: host threads may share the device and run its kernels in turn.
//
// Environment: EDGEKV_EMULATOR_SEED=n picks the seed (1 otherwise); EDGEKV_EMULATOR_STRICT=1 makes device memory inaccessible
// except while operations run, which finds host accesses to it; EDGEKV_EMULATOR_WITHOUT=attend_merge.cu:32 runs kernels as if the barrier or
// the fence of that line were missing, which tests must find.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#include "emulator/emulator_half.h"
#include "emulator/emulator_math.h"
#include "emulator/emulator_types.h"

#if defined(__GNUC__) && !defined(__clang__)
#    pragma GCC diagnostic ignored "-Wunknown-pragmas"  // #pragma unroll
#endif

// these describe the thread that runs now; blocks run under the lock
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace edgekv::gpu {

char * shared_memory();  // the block's dynamic shared memory
bool allow_shared(const void * kernel, size_t n_bytes);

namespace emulator {

// ---- launches (gpu.h calls this) ---------------------------------------------------------------------------------------------

void enqueue(void * stream, dim3 grid, unsigned threads, size_t shared_bytes, std::function<void()> kernel, bool behind = false);

// Each thread of a launch that overlaps with the one before calls it, or the process ends.
void await_launch();

// A function of the host in the stream's order, as cudaLaunchHostFunc: recordings hold it too. It must not call the device.
void enqueue_host(void * stream, std::function<void()> run);

// ---- for tests ---------------------------------------------------------------------------------------------------------------

constexpr long kNever = -1;

// The device's resources, and when it begins to fail. Counts run down with each call; kNever: it never fails.
struct Limits {
    size_t device_bytes = size_t(8) << 30;
    size_t shared_bytes = 64 * 1024;  // of a block, as on the smallest card that we build for
    bool has_display = false;
    size_t late_bytes = 0;  // of the device's, which the first launch takes, as a driver does for code and stacks
    size_t pinned_bytes = SIZE_MAX;  // of the host's memory, which it pins
    bool pins_later = true;  // the caller's memory too; WSL2 does not
    long allocs_left = kNever;   // so many alloc() calls succeed
    long copies_left = kNever;   // so many copies succeed; later ones refuse at once
    long operations_left = kNever;  // so many operations run; the next is lost, and the next sync or check() says so
};

void set_limits(const Limits & limits);
enum class Foreign { none, not_ready, error };
void leave_error(Foreign left);  // as if another library's call had left this on the thread and it had not asked for it yet
void set_seed(uint64_t seed);  // seeds everything random from here on
size_t n_queued();             // waiting operations
size_t link_bytes();           // bytes that copies and kernels read from host memory since the process began
void check_guards();           // ends the process where memory around an allocation was written

// CUDA graphs: operations queued on the stream, and on streams that join it through events, are recorded and do not run. The graph
// replays them with the recorded arguments.
bool capture_begin(void * stream, uint64_t id);
void * capture_end(void * stream);  // null: nothing was being captured
bool graph_launch(void * graph, void * stream);
void graph_destroy(void * graph);

// ---- collectives -------------------------------------------------------------------------------------------------------------

enum class Collective : int {
    none, syncthreads, syncwarp, shfl, shfl_xor, shfl_up, shfl_down, ballot, any, all, reduce_add
};

// The calling thread waits until all participants have come; returns its result. `file` and `line` serve to check that all are at the
// same place of the source.
uint64_t warp_collective(Collective kind, unsigned mask, uint64_t value, int argument, int width, const char * file, int line);
void block_barrier(const char * file, int line);
void atomic_point();  // sometimes lets other threads run

// The running block's static shared variable of a type and line: the same for all its threads, and poisoned before the first of them runs.
void * shared_static(const void * type, int line, size_t n_bytes, size_t alignment);

template <class T>
inline char type_tag = 0;

template <class T>
T & shared_variable(int line) { return *static_cast<T *>(shared_static(&type_tag<T>, line, sizeof(T), alignof(T))); }
void count_link(size_t n_bytes);
void look_point();  // of a thread that waits for what another block writes
#if defined(EDGEKV_RACECHECK)
void atomic_access(const void * p, size_t n_bytes, bool write);  // see emulator_race.cpp
void fence(const char * file, int line);
#else
inline void atomic_access(const void *, size_t, bool) {}
inline void fence(const char *, int) {}
#endif

template <class T>
uint64_t to_word(const T & value) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>, "shuffles move up to 8 bytes");
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(T));
    return word;
}

template <class T>
T from_word(uint64_t word) {
    T value;
    std::memcpy(&value, &word, sizeof(T));
    return value;
}

}  // namespace emulator
}  // namespace edgekv::gpu

#define EDGEKV_SHARED(type, name) auto & name = ::edgekv::gpu::emulator::shared_variable<type>(__LINE__)

#define EDGEKV_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define EDGEKV_COLLECTIVE(kind) ::edgekv::gpu::emulator::Collective::kind

inline void __syncthreads(EDGEKV_HERE) { ::edgekv::gpu::emulator::block_barrier(file, line); }
inline void __syncwarp(unsigned mask = 0xffffffffu, EDGEKV_HERE) {
    ::edgekv::gpu::emulator::warp_collective(EDGEKV_COLLECTIVE(syncwarp), mask, 0, 0, 32, file, line);
}

#define EDGEKV_SHUFFLE(name, kind, argument_type)                                                             \
    template <class T>                                                                                        \
    inline T name(unsigned mask, T value, argument_type argument, int width = 32, EDGEKV_HERE) {              \
        using namespace ::edgekv::gpu::emulator;                                                              \
        return from_word<T>(warp_collective(EDGEKV_COLLECTIVE(kind), mask, to_word(value),                    \
                                            static_cast<int>(argument), width, file, line));                  \
    }
EDGEKV_SHUFFLE(__shfl_sync, shfl, int)
EDGEKV_SHUFFLE(__shfl_xor_sync, shfl_xor, int)
EDGEKV_SHUFFLE(__shfl_up_sync, shfl_up, unsigned)
EDGEKV_SHUFFLE(__shfl_down_sync, shfl_down, unsigned)
#undef EDGEKV_SHUFFLE

#define EDGEKV_VOTE(result, name, kind, type)                                                                    \
    inline result name(unsigned mask, type value, EDGEKV_HERE) {                                                 \
        return static_cast<result>(::edgekv::gpu::emulator::warp_collective(                                     \
            EDGEKV_COLLECTIVE(kind), mask, ::edgekv::gpu::emulator::to_word(value), 0, 32, file, line));         \
    }
EDGEKV_VOTE(unsigned, __ballot_sync, ballot, int)
EDGEKV_VOTE(int, __any_sync, any, int)
EDGEKV_VOTE(int, __all_sync, all, int)
EDGEKV_VOTE(unsigned, __reduce_add_sync, reduce_add, unsigned)
EDGEKV_VOTE(int, __reduce_add_sync, reduce_add, int)
#undef EDGEKV_VOTE
#undef EDGEKV_COLLECTIVE

// ---- fences and atomics ------------------------------------------------------------------------------------------------------

inline void __threadfence(EDGEKV_HERE) { ::edgekv::gpu::emulator::fence(file, line); }
#undef EDGEKV_HERE

namespace edgekv::gpu::emulator {
template <class T, class F>
__attribute__((no_sanitize("thread"))) inline T atomic(T * p, F && change) {
    atomic_point();
    atomic_access(p, sizeof(T), true);
    const T old = *p;
    *p = change(old);
    return old;
}

template <class T>
__attribute__((no_sanitize("thread"))) inline T look(const T * p) {
    look_point();
    atomic_access(p, sizeof(T), false);
    return *p;
}
}  // namespace edgekv::gpu::emulator

#define EDGEKV_ATOMIC(name, type, expression)                                                                         \
    inline type name(type * p, type value) {                                                                         \
        return ::edgekv::gpu::emulator::atomic(p, [value](type old) { return static_cast<type>(expression); });      \
    }
EDGEKV_ATOMIC(atomicAdd, float, old + value)
EDGEKV_ATOMIC(atomicAdd, int, static_cast<unsigned>(old) + static_cast<unsigned>(value))
EDGEKV_ATOMIC(atomicAdd, unsigned, old + value)
EDGEKV_ATOMIC(atomicAdd, unsigned long long, old + value)
EDGEKV_ATOMIC(atomicOr, unsigned, old | value)
EDGEKV_ATOMIC(atomicInc, unsigned, old >= value ? 0u : old + 1u)
EDGEKV_ATOMIC(atomicExch, unsigned long long, (static_cast<void>(old), value))
#undef EDGEKV_ATOMIC
inline unsigned long long atomicCAS(unsigned long long * p, unsigned long long expected, unsigned long long value) {
    return ::edgekv::gpu::emulator::atomic(p, [=](unsigned long long old) { return old == expected ? value : old; });
}
