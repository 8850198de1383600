// The device as the data plane sees it: memory, streams, events, launches. It has two implementations: the CUDA runtime (cuda/runtime,
// compiled by nvcc), and an emulated device (native/emulator, compiled by the host's C++ compiler). The emulated one runs every kernel
// of this folder thread by thread, so that arithmetic and stream order are tested on machines without a GPU.
//
// Kernels are written in CUDA C++ and include this header only. The differences between the builds stand here and in emulator.h:
//   dynamic shared memory  shared_memory(), in place of `extern __shared__`
//   static shared memory   EDGEKV_SHARED(float[64], name), in place of `__shared__ float name[64]`
//   launches               launch(kernel, grid, threads, shared_bytes, stream, arguments...), in place of <<< >>>
//   launches that overlap  launch_behind(), of kernels that begin with wait_for_launch()
//   functions of their own EDGEKV_APART, in place of __noinline__: compiled once for all kernels of a source, which pass their arguments on by
//                          reference (and take them as `const __grid_constant__`, or else each thread would copy them first)
//   what others write now  look(p)
// The emulated device knows blockIdx, gridDim (x, y, z), threadIdx.x, blockDim.x, __syncthreads,
// __syncwarp, __shfl_sync, __shfl_xor_sync, __shfl_down_sync, __ballot_sync, __any_sync, __all_sync, atomicAdd/Or/Inc/Exch/CAS,
// __threadfence, __half and its conversions, __dp4a, __popc, __clz, __ffs, __ldg, __float_as_int and its kin, the _rn intrinsics that
// forbid contraction (__fmul_rn, __fadd_rn, __fsub_rn, __fdiv_rn, __fsqrt_rn), __expf and __logf. Warps have 32 threads; blocks are one-dimensional.
//
// Errors. Functions that can fail return false and leave the sentence in last_error() (per thread). Launches report at the next
// stream_sync() or check(). Nothing throws. The CUDA runtime keeps one last error per thread for all its users, and ggml asks for it
// after each of its nodes. So our calls clear only errors of their own: an earlier error stays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#if defined(__CUDACC__)
#    include <cuda_fp16.h>
#    include <cuda_runtime.h>
#else
#    include "emulator/emulator.h"
#endif

namespace edgekv::gpu {

struct Grid {
    unsigned x = 1, y = 1, z = 1;
};

using Stream = void *;  // cudaStream_t
using Event  = void *;  // cudaEvent_t

constexpr int kWarp = 32;

// ---- launches ----------------------------------------------------------------------------------------------------------------

// a launch copies its arguments byte by byte; every CUDA version takes 4 KiB of them
template <class... P>
constexpr bool launchable = (std::is_trivially_copyable_v<P> && ...) && (sizeof(P) + ... + 0) <= 4096;

#if defined(__CUDACC__)
template <class T>
using Same = T;  // a name for an array's type before that of the variable
#    define EDGEKV_SHARED(type, name) __shared__ ::edgekv::gpu::Same<type> name

extern __shared__ __align__(16) char edgekv_shared_memory[];
__device__ inline char * shared_memory() { return edgekv_shared_memory; }

// a kernel must ask once for more than 48 KiB of dynamic shared memory; false: this card has less than n_bytes
bool allow_shared(const void * kernel, size_t n_bytes);

// around a launch; the launch owns an error that appears only if none stood before
bool launch_begins();
void launch_ends(bool none_stood);

template <class... P, class... A>
void launch(void (*kernel)(P...), Grid grid, unsigned threads, size_t shared_bytes, Stream stream, A... arguments) {
    static_assert(launchable<P...>, "plain structs and numbers, 4 KiB at most");
    if (shared_bytes > 48*1024) {
        allow_shared(reinterpret_cast<const void *>(kernel), shared_bytes);
    }
    const bool none_stood = launch_begins();
    kernel<<<dim3(grid.x, grid.y, grid.z), threads, shared_bytes, static_cast<cudaStream_t>(stream)>>>(static_cast<P>(arguments)...);
    launch_ends(none_stood);
}

// Whether a kernel's blocks may take their places while the kernel before still runs: on compute capability 9.0 and newer, unless GGML_CUDA_PDL is 0.
// Code for an older one, which the driver compiled for a new card, would not wait.
bool may_overlap(const void * kernel);

// The same behind another kernel of the stream. What that kernel wrote is there behind the kernel's wait_for_launch(), and so is all that it had waited for.
template <class... P, class... A>
void launch_behind(void (*kernel)(P...), Grid grid, unsigned threads, size_t shared_bytes, Stream stream, A... arguments) {
    if (!may_overlap(reinterpret_cast<const void *>(kernel))) {
        return launch(kernel, grid, threads, shared_bytes, stream, arguments...);
    }
    static_assert(launchable<P...>, "plain structs and numbers, 4 KiB at most");
    if (shared_bytes > 48*1024) {
        allow_shared(reinterpret_cast<const void *>(kernel), shared_bytes);
    }
    cudaLaunchAttribute overlaps = {};
    overlaps.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlaps.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(grid.x, grid.y, grid.z);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &overlaps;
    config.numAttrs = 1;
    const bool none_stood = launch_begins();
    cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...);
    launch_ends(none_stood);
}

// The first thing that a kernel of launch_behind() does, in all threads; the kernel behind it may then begin, and wait in its turn.
__device__ __forceinline__ void wait_for_launch() {
#    if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
#    endif
}
#else
template <class... P, class... A>
void launch(void (*kernel)(P...), Grid grid, unsigned threads, size_t shared_bytes, Stream stream, A... arguments) {
    static_assert(launchable<P...>, "plain structs and numbers, 4 KiB at most");
    emulator::enqueue(stream, { grid.x, grid.y, grid.z }, threads, shared_bytes,
                      [kernel, arguments...] { kernel(static_cast<P>(arguments)...); });
}

template <class... P, class... A>
void launch_behind(void (*kernel)(P...), Grid grid, unsigned threads, size_t shared_bytes, Stream stream, A... arguments) {
    static_assert(launchable<P...>, "plain structs and numbers, 4 KiB at most");
    emulator::enqueue(stream, { grid.x, grid.y, grid.z }, threads, shared_bytes,
                      [kernel, arguments...] { kernel(static_cast<P>(arguments)...); }, /*.behind =*/ true);
}

inline void wait_for_launch() { emulator::await_launch(); }
#endif

#if defined(__CUDACC__)
#    define EDGEKV_APART __noinline__
// The word as another block left it, now or at some time before: for loops that wait. It orders nothing else.
template <class T>
__device__ __forceinline__ T look(const T * p) { return *static_cast<const volatile T *>(p); }
#else
#    define EDGEKV_APART __attribute__((noinline))
template <class T>
inline T look(const T * p) { return emulator::look(p); }
#endif

constexpr unsigned kAllLanes = 0xffffffffu;

// `combine` over a warp's values. All lanes call it, and get the same.
template <class T, class Combine>
__device__ __forceinline__ T over_warp(T x, Combine combine) {
    for (int step = kWarp/2; step > 0; step /= 2) {
        x = combine(x, __shfl_xor_sync(kAllLanes, x, step));
    }
    return x;
}

template <class T>
__device__ __forceinline__ T sum_of_warp(T x) { return over_warp(x, [](T a, T b) { return a + b; }); }

__device__ __forceinline__ float most_of_warp(float x) { return over_warp(x, [](float a, float b) { return fmaxf(a, b); }); }

// A kernel counts the bytes of home that it reads in place: on a card they cross the link. The emulated device adds them up.
#if defined(__CUDACC__)
__device__ __forceinline__ void reads_home(size_t) {}
#else
inline void reads_home(size_t n_bytes) { emulator::count_link(n_bytes); }
#endif

// ---- the device --------------------------------------------------------------------------------------------------------------

struct Device {
    std::string name;
    int arch      = 0;   // 89: compute capability 8.9; 0: emulated
    int n_sm      = 0;
    int driver    = 0;   // newest CUDA version that the driver supports: 13000 is 13.0; 0: emulated
    int runtime   = 0;
    size_t total_bytes = 0;
    size_t free_bytes  = 0;
    bool has_display = false;  // it may draw a screen: the system ends kernels that take long
    bool maps_host   = false;  // kernels may read and write pinned host memory
    bool pins_later  = false;  // pin() serves: what the caller has mapped keeps its address
    bool has_kernels = false;  // this build has code for its architecture; else last_error() says what to do
};

int device_count();
bool device(int index, Device & out);
bool use_device(int index);  // for this thread
const char * last_error();
bool check();                // false: an earlier launch failed; clears it
std::string take_failure();  // this thread's first failure, of a function here or a launch, since the last take_failure(); "": none
bool error_stands();         // another library left an error that it has not asked for yet
void clear_not_ready();      // clears the answer of a query that another library left standing: it is no error; all else stays

// ---- memory ------------------------------------------------------------------------------------------------------------------

bool alloc(void ** out, size_t n_bytes);         // device memory, zeroed
void free_device(void * p);
bool alloc_pinned(void ** out, size_t n_bytes);  // host memory that copies and kernels reach
void free_pinned(void * p);  // the caller has waited for its users: waiting for the whole device would end a recording of another context
// The caller's memory, as that of alloc_pinned() from now on, until unpin(p). Whole pages of the system, none of them pinned, in `home`, whose other pages
// no kernel reaches. A copy must not leave what was pinned by one call, not even for what lies beside it. The caller has waited for its users.
bool pin(char * p, size_t n_bytes, char * home, size_t home_bytes);
void unpin(char * p);
bool is_pinned(const void * host);               // kernels may use the pointer as it stands

bool copy(void * dst, const void * src, size_t n_bytes);  // in any direction; waits
bool copy_async(void * dst, const void * src, size_t n_bytes, Stream stream);
bool zero_async(void * dst, size_t n_bytes, Stream stream);

// ---- order -------------------------------------------------------------------------------------------------------------------

bool stream_create(Stream * out, bool urgent = false);  // does not wait for the default stream
void stream_destroy(Stream stream);
bool stream_sync(Stream stream);
// whether the stream records a CUDA graph now, and its number: one per graph
bool stream_capturing(Stream stream, uint64_t * id);

bool event_create(Event * out, bool timed = false);
void event_destroy(Event event);
bool event_record(Event event, Stream stream);
bool event_wait(Stream stream, Event event);  // later work on the stream waits for the event; an event never recorded counts as over
bool event_sync(Event event);
float event_ms(Event from, Event to);         // both events must be timed and over

}  // namespace edgekv::gpu
