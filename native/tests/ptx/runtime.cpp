// The part of CUDA's runtime that EdgeKV and its device programs call, over engine.h. Device memory is the host's, and every operation is done
// when it is enqueued; only what is recorded waits for its graph's launches.
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine.h"

namespace {

// ---- memory ------------------------------------------------------------------------------------------------------------------

struct Allocation {
    size_t n_bytes;
    bool pinned;
};
std::map<unsigned long long, Allocation> allocations;
unsigned long long last_begin = 1, last_end = 0;  // of the allocation that was used last

constexpr size_t kMemory = size_t(8) << 30, kShared = 99 * 1024;

unsigned long long address(const void * p) { return reinterpret_cast<unsigned long long>(p); }

void * take(size_t n_bytes, bool pinned) {
    void * const p = aligned_alloc(256, (n_bytes + 511) / 256 * 256);
    memset(p, 0xcd, n_bytes);
    allocations[address(p)] = {n_bytes, pinned};
    return p;
}

void give(void * p) {
    if (p != nullptr && allocations.erase(address(p)) == 0) {
        fprintf(stderr, "PTX FAULT: %p is freed, which was not allocated\n", p);
        abort();
    }
    last_begin = 1, last_end = 0;
    free(p);
}

// ---- streams and graphs ------------------------------------------------------------------------------------------------------

using Graph = std::vector<std::function<void()>>;
struct Stream {
    Graph * recording = nullptr;
    unsigned long long id = 0;
};
struct Event {
    Graph * of = nullptr;  // the recording that it belongs to
    unsigned long long id = 0;
};
Stream default_stream;
std::vector<Stream *> streams = {&default_stream};
unsigned long long n_graphs = 0;

Stream & of(cudaStream_t stream) { return stream != nullptr ? *reinterpret_cast<Stream *>(stream) : default_stream; }
Graph & of(cudaGraph_t graph) { return *reinterpret_cast<Graph *>(graph); }
Event & of(cudaEvent_t event) { return *reinterpret_cast<Event *>(event); }

cudaError_t enqueue(cudaStream_t stream, std::function<void()> operation) {
    if (Graph * const graph = of(stream).recording) {
        graph->push_back(std::move(operation));
    } else {
        operation();
    }
    return cudaSuccess;
}

// ---- launches ----------------------------------------------------------------------------------------------------------------

cudaError_t last_error = cudaSuccess;
cudaError_t failed(cudaError_t error) { return last_error = error; }

template <class T, class Value>
cudaError_t set(T * out, Value value) {
    *out = (T)value;
    return cudaSuccess;
}

std::map<const void *, std::string> kernels;  // by the host's function
struct Call {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};
std::vector<Call> calls;

}  // namespace

bool ptx::allocated(unsigned long long at, size_t n_bytes) {
    if (at < last_begin || at + n_bytes > last_end) {
        auto found = allocations.upper_bound(at);
        if (found == allocations.begin() || (--found, at + n_bytes > found->first + found->second.n_bytes)) {
            return false;
        }
        last_begin = found->first;
        last_end   = found->first + found->second.n_bytes;
    }
    return true;
}

extern "C" {

// What nvcc's objects call before main(). A fat binary is a header and parts, of which PTX is kind 1.
void ** __cudaRegisterFatBinary(void * wrapper) {
    const char * const header = static_cast<const char * const *>(wrapper)[1];
    unsigned long long n_bytes;
    unsigned short header_bytes;
    memcpy(&header_bytes, header + 6, sizeof header_bytes);
    memcpy(&n_bytes, header + 8, sizeof n_bytes);
    for (const char * part = header + header_bytes, * const end = part + n_bytes; part < end;) {
        unsigned short kind;
        unsigned begin;
        unsigned long long size;
        memcpy(&kind, part, sizeof kind);
        memcpy(&begin, part + 4, sizeof begin);
        memcpy(&size, part + 8, sizeof size);
        if (kind == 1) {
            ptx::load(part + begin, strnlen(part + begin, size));
        }
        part += begin + size;
    }
    return static_cast<void **>(wrapper);
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
char __cudaInitModule(void **) { return 1; }
void __cudaRegisterFunction(void **, const char * host, char *, const char * name, int, uint3 *, uint3 *, dim3 *, dim3 *, int *) { kernels[host] = name; }
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    calls.push_back({grid, block, shared, stream});
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 * grid, dim3 * block, size_t * shared, void * stream) {
    *grid = calls.back().grid;
    *block = calls.back().block;
    *shared = calls.back().shared;
    *static_cast<cudaStream_t *>(stream) = calls.back().stream;
    calls.pop_back();
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t * out, const void * host) { return set(out, host); }

cudaError_t cudaLaunchKernel(const void * host, dim3 grid, dim3 block, void ** arguments, size_t shared, cudaStream_t stream) {
    void * const kernel = ptx::kernel(kernels.at(host).c_str());
    const unsigned n_threads = block.x * block.y * block.z;
    if (kernel == nullptr || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 || n_threads == 0 || n_threads > 1024) {
        return failed(kernel == nullptr ? cudaErrorInvalidDeviceFunction : cudaErrorInvalidConfiguration);
    }
    if (shared > kShared) {
        return failed(cudaErrorInvalidValue);
    }
    size_t sizes[64], offsets[64];
    const int n = ptx::parameters(kernel, sizes, offsets);
    const std::shared_ptr<char> packed(static_cast<char *>(take(n > 0 ? offsets[n - 1] + sizes[n - 1] : 1, false)), give);
    for (int i = 0; i < n; ++i) {
        memcpy(packed.get() + offsets[i], arguments[i], sizes[i]);
    }
    return enqueue(stream, [=] {
        const unsigned grid_of[] = {grid.x, grid.y, grid.z}, block_of[] = {block.x, block.y, block.z};
        ptx::launch(kernel, grid_of, block_of, shared, packed.get());
        ptx::end_if_late();
    });
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void ** arguments, size_t shared, cudaStream_t stream) {
    return cudaLaunchKernel(reinterpret_cast<const void *>(kernel), grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t * config, const void * host, void ** arguments) {  // which may overlap, and does not
    return cudaLaunchKernel(host, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, config->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes * out, const void *) {
    memset(out, 0, sizeof *out);
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int value) {
    return static_cast<size_t>(value) <= kShared ? cudaSuccess : failed(cudaErrorInvalidValue);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int * out, const void *, int, size_t, unsigned) { return set(out, 1); }
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetLastError() {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
const char * cudaGetErrorName(cudaError_t) { return "cudaError"; }
const char * cudaGetErrorString(cudaError_t) { return "an error"; }

cudaError_t cudaMalloc(void ** out, size_t n_bytes) { return set(out, take(n_bytes, false)); }
cudaError_t cudaHostAlloc(void ** out, size_t n_bytes, unsigned) { return set(out, take(n_bytes, true)); }
cudaError_t cudaFree(void * p) {
    give(p);
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void * p) { return cudaFree(p); }
cudaError_t cudaHostRegister(void *, size_t, unsigned) { return cudaErrorNotSupported; }  // no program here pins memory of its own
cudaError_t cudaHostUnregister(void *) { return cudaErrorNotSupported; }
cudaError_t cudaMemGetInfo(size_t * free_bytes, size_t * total_bytes) { return set(free_bytes, *total_bytes = kMemory); }
cudaError_t cudaMemcpyAsync(void * to, const void * from, size_t n_bytes, cudaMemcpyKind, cudaStream_t stream) {
    return enqueue(stream, [=] { memcpy(to, from, n_bytes); });
}
cudaError_t cudaMemcpy(void * to, const void * from, size_t n_bytes, cudaMemcpyKind kind) { return cudaMemcpyAsync(to, from, n_bytes, kind, nullptr); }
cudaError_t cudaMemsetAsync(void * to, int value, size_t n_bytes, cudaStream_t stream) {
    return enqueue(stream, [=] { memset(to, value, n_bytes); });
}
cudaError_t cudaMemset(void * to, int value, size_t n_bytes) { return cudaMemsetAsync(to, value, n_bytes, nullptr); }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes * out, const void * p) {
    memset(out, 0, sizeof *out);
    if (ptx::allocated(address(p), 1)) {
        const bool pinned = std::prev(allocations.upper_bound(address(p)))->second.pinned;
        out->type = pinned ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
        out->devicePointer = const_cast<void *>(p);
        out->hostPointer = pinned ? out->devicePointer : nullptr;
    }
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t * out, unsigned, int) {
    streams.push_back(new Stream());
    return set(out, streams.back());
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    for (Stream *& other : streams) {
        if (other == &of(stream)) {
            delete other;
            other = streams.back();
            streams.pop_back();
            break;
        }
    }
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int * least, int * greatest) { return set(least, 0), set(greatest, -5); }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus * status, unsigned long long * id, cudaGraph_t *,
                                     const cudaGraphNode_t **, const cudaGraphEdgeData **, size_t *) {
    *status = of(stream).recording != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (id != nullptr) {
        *id = of(stream).id;
    }
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    of(stream) = {new Graph(), ++n_graphs};
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t * out) {
    Graph * const graph = of(stream).recording;
    set(out, graph);
    for (Stream * const other : streams) {
        if (other->recording == graph) {
            other->recording = nullptr;
        }
    }
    return graph != nullptr ? cudaSuccess : failed(cudaErrorIllegalState);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t * out, cudaGraph_t graph, unsigned long long) { return set(out, graph); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
    for (const auto & operation : of(reinterpret_cast<cudaGraph_t>(graph))) {
        operation();
    }
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    delete &of(graph);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t * out, unsigned) { return set(out, new Event()); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete &of(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    of(event) = {of(stream).recording, of(stream).id};
    return cudaSuccess;
}
// A stream that waits for a recording's event is recorded too.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (of(event).of != nullptr && of(stream).recording == nullptr) {
        of(stream) = {of(event).of, of(event).id};
    }
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float * ms, cudaEvent_t, cudaEvent_t) { return set(ms, 1.0f); }

cudaError_t cudaGetDeviceCount(int * n) { return set(n, 1); }
cudaError_t cudaGetDevice(int * device) { return set(device, 0); }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp * out, int) {
    memset(out, 0, sizeof *out);
    strcpy(out->name, "a simulator of PTX");
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int * out, cudaDeviceAttr which, int) {
    *out = which == cudaDevAttrComputeCapabilityMajor              ? 8
           : which == cudaDevAttrComputeCapabilityMinor            ? 0
           : which == cudaDevAttrMultiProcessorCount               ? 4
           : which == cudaDevAttrMaxSharedMemoryPerBlockOptin      ? static_cast<int>(kShared)
                                                                   : 1;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int * version) { return set(version, 13000); }
cudaError_t cudaRuntimeGetVersion(int * version) { return cudaDriverGetVersion(version); }

}  // extern "C"
