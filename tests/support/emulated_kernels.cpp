// The kernels that CuPy loads, on the emulated device: a library for tests/support/fake_cupy.py. Each call runs to its end.
#include "cuda/gpu.h"

#define __shared__ static  // launches run to their end here, block after block
#include "cuda/arrays.cu"

#include <cstring>
#include <utility>

using namespace edgekv::gpu;

namespace {

template <class... P, size_t... I>
bool run(void (*kernel)(P...), Grid grid, unsigned threads, void ** arguments, std::index_sequence<I...>) {
    launch(kernel, grid, threads, 0, nullptr, *static_cast<P *>(arguments[I])...);
    return stream_sync(nullptr);
}

template <class... P>
bool run(void (*kernel)(P...), Grid grid, unsigned threads, void ** arguments) {
    return run(kernel, grid, threads, arguments, std::index_sequence_for<P...>());
}

}  // namespace

// false: there is no such kernel, or it failed
extern "C" bool edgekv_test_launch(const char * name, unsigned x, unsigned y, unsigned threads, void ** arguments) {
#define KERNEL(kernel)                                        \
    if (std::strcmp(name, #kernel) == 0) {                    \
        return run(kernel, { x, y, 1 }, threads, arguments);  \
    }
    KERNEL(edgekv_ema)
    KERNEL(edgekv_clear)
    KERNEL(edgekv_search)
    KERNEL(edgekv_list)
    KERNEL(edgekv_gather_pages)
    return false;
}
