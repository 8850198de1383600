// The memory of a card, cuda/runtime/memory.cu, over a stand-in for CUDA's runtime: another context records a graph meanwhile, and a call that
// waits for the whole device would end that recording. CUDA says so of cudaDeviceSynchronize, in whatever mode a stream records.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "checks.h"
#include "cuda/gpu.h"

namespace {

bool recording_is_valid = true;

// ---- CUDA's runtime, as far as memory.cu asks it -------------------------------------------------------------------------------

enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation, cudaErrorStreamCaptureUnsupported };
enum cudaMemcpyKind { cudaMemcpyDefault };
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost };
enum cudaDeviceAttr {};
enum { cudaHostAllocMapped, cudaHostAllocPortable };
using cudaStream_t = void *;

struct cudaPointerAttributes {
    cudaMemoryType type;
    void * devicePointer;
};

cudaError_t given(void ** out, size_t n_bytes) { return (*out = std::malloc(n_bytes)) ? cudaSuccess : cudaErrorMemoryAllocation; }
cudaError_t taken(void * p) { return std::free(p), cudaSuccess; }

cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaMalloc(void ** out, size_t n_bytes) { return given(out, n_bytes); }
cudaError_t cudaHostAlloc(void ** out, size_t n_bytes, unsigned) { return given(out, n_bytes); }
cudaError_t cudaFree(void * p) { return taken(p); }
cudaError_t cudaFreeHost(void * p) { return taken(p); }
cudaError_t cudaMemGetInfo(size_t * free, size_t * total) { return *free = *total = 0, cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes * out, const void * p) {
    return *out = { cudaMemoryTypeHost, const_cast<void *>(p) }, cudaSuccess;
}
cudaError_t cudaMemset(void * p, int value, size_t n_bytes) { return std::memset(p, value, n_bytes), cudaSuccess; }
cudaError_t cudaMemsetAsync(void * p, int value, size_t n_bytes, cudaStream_t) { return cudaMemset(p, value, n_bytes); }
cudaError_t cudaMemcpy(void * to, const void * from, size_t n_bytes, cudaMemcpyKind) { return std::memcpy(to, from, n_bytes), cudaSuccess; }
cudaError_t cudaMemcpyAsync(void * to, const void * from, size_t n_bytes, cudaMemcpyKind kind, cudaStream_t) { return cudaMemcpy(to, from, n_bytes, kind); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }  // of a stream that records nothing
[[maybe_unused]] cudaError_t cudaDeviceSynchronize() {
    if (recording_is_valid) {
        recording_is_valid = false;
    }
    return cudaErrorStreamCaptureUnsupported;
}

}  // namespace

// memory.cu beside the emulated device's functions of the same names
namespace card {
namespace edgekv::gpu {
using namespace ::edgekv::gpu;
}
#include "cuda/runtime/call.h"
#include "cuda/runtime/memory.cu"
bool edgekv::gpu::refuse(const std::string &) { return false; }
bool edgekv::gpu::ok(cudaError_t error, const char *) { return error == cudaSuccess; }
}  // namespace card

int main() {
    namespace gpu = card::edgekv::gpu;
    void * pinned = nullptr, * own = nullptr;
    CHECK(gpu::alloc_pinned(&pinned, 100) && gpu::is_pinned(pinned) && gpu::alloc(&own, 100) && recording_is_valid);
    CHECK(gpu::copy(own, pinned, 100) && gpu::copy_async(pinned, own, 100, nullptr) && gpu::zero_async(own, 100, nullptr) && recording_is_valid);
    gpu::free_pinned(pinned);
    CHECK(recording_is_valid, "free_pinned");
    gpu::free_device(own);
    CHECK(recording_is_valid, "free_device");
    CHECK(cudaDeviceSynchronize() != cudaSuccess && !recording_is_valid, "the stand-in tells it");
    return test::finish();
}
