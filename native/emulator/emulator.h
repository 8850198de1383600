// The emulated device: CUDA C++ for the host compiler, and a device that runs it on one host thread.
//
// Blocks. Every thread of a block is a fiber; it runs until it waits for others (a barrier, a warp's collective) or ends. Blocks
// of a launch run one after another in a shuffled order, and so do the threads of a block between two barriers, so that what
// depends on the order shows as different results of different seeds. What a GPU leaves undefined ends the process with a
// sentence: threads of a warp at different collectives, threads that have left while others wait, a barrier that not all reach,
// writes behind dynamic shared memory, accesses outside device memory (guard pages) and after its release.
//
// Streams. Operations are queued and run only when somebody waits or asks, in an order drawn from a seed, within CUDA's rules.
//
// One lock stands around everything: host threads may share the device, and run its kernels in turn.
//
// Environment: EDGEKV_EMULATOR_SEED=n picks the seed (1 otherwise); EDGEKV_EMULATOR_STRICT=1 makes device memory inaccessible
// except while operations run, so that a host access to it is found.
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

// of the thread that runs now; blocks run under the lock
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace edgekv::gpu {

char * shared_memory();  // the block's dynamic shared memory
bool allow_shared(const void * kernel, size_t n_bytes);

namespace emulator {

// ---- launches (gpu.h calls this) ---------------------------------------------------------------------------------------------

void enqueue(void * stream, dim3 grid, unsigned threads, size_t shared_bytes, std::function<void()> kernel);

// ---- for tests ---------------------------------------------------------------------------------------------------------------

constexpr long kNever = -1;

// What the device has, and when it begins to fail. Counts run down with each call; kNever: it never fails.
struct Limits {
    size_t device_bytes = size_t(8) << 30;
    size_t shared_bytes = 99 * 1024;  // of a block: what the smallest card we build for can give
    bool pins = true;     // alloc_pinned() succeeds
    long allocs_left = kNever;   // alloc() succeeds so often
    long copies_left = kNever;   // copy functions succeed so often, then refuse at once
    long operations_left = kNever;  // operations run so often; the next is lost, and the next sync or check() says so
};

void set_limits(const Limits & limits);
void leave_error(bool there);  // as if somebody else's call had failed on this thread, who has not asked for it yet
void set_seed(uint64_t seed);  // of everything random from here on
size_t n_queued();             // operations that wait
size_t link_bytes();           // read from host memory, by copies and by kernels in place, since the process began
void check_guards();           // ends the process where memory around an allocation was written

// CUDA graphs: what is queued on the stream, and on streams that join it through events, is recorded and does not run. The graph
// replays it with the arguments as they were.
bool capture_begin(void * stream, uint64_t id);
void * capture_end(void * stream);  // null: nothing was being captured
bool graph_launch(void * graph, void * stream);
void graph_destroy(void * graph);

// ---- collectives -------------------------------------------------------------------------------------------------------------

enum class Collective : int {
    none, syncthreads, syncwarp, shfl, shfl_xor, shfl_up, shfl_down, ballot, any, all, reduce_add
};

// The calling thread waits until all that take part have come; its result. `file` and `line`: where in the source, for the check
// that all are at the same place.
uint64_t warp_collective(Collective kind, unsigned mask, uint64_t value, int argument, int width, const char * file, int line);
void block_barrier(const char * file, int line);
void atomic_point();  // lets other threads run, sometimes
void count_link(size_t n_bytes);

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
#undef EDGEKV_HERE

// ---- fences and atomics ------------------------------------------------------------------------------------------------------

inline void __threadfence() {}

namespace edgekv::gpu::emulator {
template <class T, class F>
inline T atomic(T * p, F && change) {
    atomic_point();
    const T old = *p;
    *p = change(old);
    return old;
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
#undef EDGEKV_ATOMIC
