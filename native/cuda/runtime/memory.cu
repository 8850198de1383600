// Device memory, pinned host memory, and copies.
#include <algorithm>

#include "cuda/runtime/call.h"

namespace edgekv::gpu {
namespace {

std::string mib(size_t n_bytes) { return std::to_string((n_bytes + (size_t(1) << 20) - 1) >> 20) + " MiB"; }

// Kernels read whole words of eight bytes (attend_load.cuh); compute-sanitizer reports one that ends behind what was asked for.
size_t whole_words(size_t n_bytes) { return (std::max<size_t>(n_bytes, 1) + 7)/8*8; }

}  // namespace

bool alloc(void ** out, size_t n_bytes) {
    const Call call;
    *out = nullptr;
    n_bytes = whole_words(n_bytes);
    const cudaError_t error = cudaMalloc(out, n_bytes);
    if (error == cudaErrorMemoryAllocation) {
        size_t free = 0, total = 0;
        cudaMemGetInfo(&free, &total);
        *out = nullptr;
        return refuse("the GPU has no memory for " + mib(n_bytes) + " more; " + mib(free) + " are free");
    }
    // the default stream zeroes; other streams do not wait for it and may use the memory at once
    if (ok(error, "device memory") && ok(cudaMemset(*out, 0, n_bytes), "device memory") &&
        ok(cudaStreamSynchronize(nullptr), "device memory")) {
        return true;
    }
    if (*out) {
        cudaFree(*out);
    }
    *out = nullptr;
    return false;
}

void free_device(void * p) {
    if (p) {
        const Call call;
        ok(cudaFree(p), "release of device memory");
    }
}

bool alloc_pinned(void ** out, size_t n_bytes) {
    const Call call;
    *out = nullptr;
    const cudaError_t error = cudaHostAlloc(out, whole_words(n_bytes), cudaHostAllocMapped | cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
        *out = nullptr;
        return refuse("the host has no pinned memory for " + mib(n_bytes) + " more");
    }
    return ok(error, "pinned memory");
}

void free_pinned(void * p) {
    if (p) {
        const Call call;
        ok(cudaFreeHost(p), "release of pinned memory");
    }
}

bool pin(char * p, size_t n_bytes, char *, size_t) {
    const Call call;
    const cudaError_t error = cudaHostRegister(p, n_bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (error == cudaErrorMemoryAllocation) {
        return refuse("the host has no pinned memory for " + mib(n_bytes) + " more");
    }
    return ok(error, "pinned memory");
}

void unpin(char * p) {
    const Call call;
    ok(cudaHostUnregister(p), "release of pinned memory");
}

bool is_pinned(const void * host) {
    const Call call;
    cudaPointerAttributes attributes;
    if (cudaPointerGetAttributes(&attributes, host) != cudaSuccess) {
        return false;
    }
    return attributes.type == cudaMemoryTypeHost && attributes.devicePointer == host;
}

bool copy(void * dst, const void * src, size_t n_bytes) {
    // cudaMemcpy may return early: if both sides are device memory, or if the source is pageable
    const Call call;
    return ok(cudaMemcpy(dst, src, n_bytes, cudaMemcpyDefault), "a copy failed") &&
           ok(cudaStreamSynchronize(nullptr), "a copy failed");
}

bool copy_async(void * dst, const void * src, size_t n_bytes, Stream stream) {
    const Call call;
    return n_bytes == 0 || ok(cudaMemcpyAsync(dst, src, n_bytes, cudaMemcpyDefault, native(stream)), "a copy failed");
}

bool zero_async(void * dst, size_t n_bytes, Stream stream) {
    const Call call;
    return n_bytes == 0 || ok(cudaMemsetAsync(dst, 0, n_bytes, native(stream)), "zeroing failed");
}

}  // namespace edgekv::gpu
