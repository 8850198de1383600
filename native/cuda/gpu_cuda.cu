// gpu.h over the CUDA runtime (12.x and 13).
#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "cuda/gpu.h"

namespace edgekv::gpu {

namespace {

thread_local std::string failure;         // the last
thread_local std::string first_failure;   // since take_failure()
thread_local std::string failed_launch;   // the first since check()

// Around what is asked of the runtime: an error that stood there before stays, one that it leaves is answered here and taken away.
class Call {
public:
    Call() : none_stood(cudaPeekAtLastError() == cudaSuccess) {}
    ~Call() {
        if (none_stood) {
            cudaGetLastError();
        }
    }
    Call(const Call &) = delete;
    Call & operator=(const Call &) = delete;

private:
    const bool none_stood;
};

__global__ void probe(int * out) {
    *out = 1;
}

std::string mib(size_t n_bytes) {
    return std::to_string((n_bytes + (size_t(1) << 20) - 1) >> 20) + " MiB";
}

std::string version(int number) {
    return std::to_string(number/1000) + "." + std::to_string(number%1000/10);
}

int attribute(cudaDeviceAttr which, int index) {
    int value = 0;
    return cudaDeviceGetAttribute(&value, which, index) == cudaSuccess ? value : 0;
}

int arch_of(int index) {
    return 10*attribute(cudaDevAttrComputeCapabilityMajor, index) + attribute(cudaDevAttrComputeCapabilityMinor, index);
}

int current_device() {
    int index = 0;
    return cudaGetDevice(&index) == cudaSuccess ? index : 0;
}

std::string sentence(cudaError_t error) {
    int driver = 0, runtime = 0;
    switch (error) {
        case cudaErrorInsufficientDriver:
            cudaDriverGetVersion(&driver);
            cudaRuntimeGetVersion(&runtime);
            return driver == 0 ? "there is no NVIDIA driver: install one, or run on the CPU (EDGEKV_DEVICE=cpu)"
                               : "the NVIDIA driver is for CUDA " + version(driver) + ", this build needs one for CUDA " +
                                     version(runtime) + ": update the driver, or install EdgeKV with an older CUDA toolkit";
        case cudaErrorNoDevice:
            return "no NVIDIA GPU is visible: look at nvidia-smi and at CUDA_VISIBLE_DEVICES, or run on the CPU "
                   "(EDGEKV_DEVICE=cpu)";
        case cudaErrorNoKernelImageForDevice:
        case cudaErrorInvalidDeviceFunction:
        case cudaErrorUnsupportedPtxVersion: {
            const int arch = arch_of(current_device());
            return "this build has no code for a GPU of compute capability " + std::to_string(arch/10) + "." +
                   std::to_string(arch%10) + ": build EdgeKV with CMAKE_CUDA_ARCHITECTURES=" + std::to_string(arch) +
                   ", or run on the CPU (EDGEKV_DEVICE=cpu)";
        }
        case cudaErrorMemoryAllocation:
            return "the GPU or the host has no memory left";
        default:
            return std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
    }
}

bool refuse(const std::string & text) {
    failure = text;
    if (first_failure.empty()) {
        first_failure = text;
    }
    return false;
}

bool ok(cudaError_t error, const char * what) {
    return error == cudaSuccess || refuse(std::string(what) + ": " + sentence(error));
}

// it will be told by check()
void fail_later(cudaError_t error, const char * what) {
    ok(error, what);
    if (failed_launch.empty()) {
        failed_launch = failure;
    }
}

cudaStream_t native(Stream stream) {
    return static_cast<cudaStream_t>(stream);
}

cudaEvent_t native_event(Event event) {
    return static_cast<cudaEvent_t>(event);
}

// makes a device the thread's own for a scope
class OnDevice {
public:
    explicit OnDevice(int index) : before(current_device()) { set = cudaSetDevice(index); }
    ~OnDevice() { cudaSetDevice(before); }
    cudaError_t status() const { return set; }

private:
    int before;
    cudaError_t set;
};

}  // namespace

// ---- the device --------------------------------------------------------------------------------------------------------------

bool allow_shared(const void * kernel, size_t n_bytes) {
    static std::mutex mutex;
    static std::map<std::pair<int, const void *>, size_t> allowed;
    const int index = current_device();
    std::lock_guard<std::mutex> guard(mutex);
    size_t & so_far = allowed[{index, kernel}];
    if (n_bytes <= so_far) {
        return true;
    }
    const Call call;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(n_bytes)) != cudaSuccess) {
        return refuse("a block cannot have " + std::to_string(n_bytes) + " bytes of shared memory on this GPU; up to " +
                      std::to_string(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index)) + " can be had");
    }
    so_far = n_bytes;
    return true;
}

bool launch_begins() {
    return cudaPeekAtLastError() == cudaSuccess;
}

void launch_ends(bool none_stood) {
    if (none_stood) {
        if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
            const Call call;
            fail_later(error, "a kernel could not be started");
        }
    }
}

int device_count() {
    const Call call;
    int n = 0;
    return ok(cudaGetDeviceCount(&n), "CUDA") ? n : 0;
}

bool device(int index, Device & out) {
    out = Device{};
    const int n = device_count();
    if (n == 0) {
        return false;
    }
    if (index < 0 || index >= n) {
        return refuse("there is no GPU " + std::to_string(index) + "; there are 0 to " + std::to_string(n - 1));
    }
    const Call call;
    cudaDeviceProp properties;
    const OnDevice on(index);
    if (!ok(on.status(), "the GPU cannot be used") ||
        !ok(cudaGetDeviceProperties(&properties, index), "the GPU cannot be asked") ||
        !ok(cudaMemGetInfo(&out.free_bytes, &out.total_bytes), "the GPU's memory cannot be asked")) {
        return false;
    }
    out.name = properties.name;
    out.arch = arch_of(index);
    out.n_sm = attribute(cudaDevAttrMultiProcessorCount, index);
    cudaDriverGetVersion(&out.driver);
    cudaRuntimeGetVersion(&out.runtime);
    out.maps_host = attribute(cudaDevAttrCanMapHostMemory, index) && attribute(cudaDevAttrUnifiedAddressing, index) &&
                    attribute(cudaDevAttrCanUseHostPointerForRegisteredMem, index);
    cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, probe);
    out.has_kernels = error == cudaSuccess;
    if (!out.has_kernels) {
        refuse(sentence(error));
    } else if (!out.maps_host) {
        refuse("this GPU cannot read host memory in place under the host's own addresses");
    }
    return true;
}

bool use_device(int index) {
    const Call call;
    return ok(cudaSetDevice(index), "the GPU cannot be used");
}

const char * last_error() {
    return failure.c_str();
}

bool check() {
    if (failed_launch.empty()) {
        return true;
    }
    failure = std::exchange(failed_launch, "");
    return false;
}

std::string take_failure() {
    return std::exchange(first_failure, "");
}

bool error_stands() {
    return cudaPeekAtLastError() != cudaSuccess;
}

// ---- memory ------------------------------------------------------------------------------------------------------------------

bool alloc(void ** out, size_t n_bytes) {
    const Call call;
    *out = nullptr;
    n_bytes = std::max<size_t>(n_bytes, 1);
    const cudaError_t error = cudaMalloc(out, n_bytes);
    if (error == cudaErrorMemoryAllocation) {
        size_t free = 0, total = 0;
        cudaMemGetInfo(&free, &total);
        *out = nullptr;
        return refuse("the GPU has no memory for " + mib(n_bytes) + " more; " + mib(free) + " are free");
    }
    // the default stream zeroes; streams that do not wait for it may use the memory at once
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
    const cudaError_t error = cudaHostAlloc(out, std::max<size_t>(n_bytes, 1), cudaHostAllocMapped | cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
        *out = nullptr;
        return refuse("the host has no pinned memory for " + mib(n_bytes) + " more");
    }
    return ok(error, "pinned memory");
}

void free_pinned(void * p) {
    if (p) {
        const Call call;
        ok(cudaDeviceSynchronize(), "release of pinned memory");  // operations that are queued may use it
        ok(cudaFreeHost(p), "release of pinned memory");
    }
}

bool pin(void * host, size_t n_bytes) {
    const Call call;
    const cudaError_t error = cudaHostRegister(host, n_bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    return error == cudaSuccess || refuse("pinning " + mib(n_bytes) + " of host memory was refused: " + sentence(error));
}

void unpin(void * host) {
    const Call call;
    ok(cudaDeviceSynchronize(), "release of pinned memory");
    ok(cudaHostUnregister(host), "release of pinned memory");
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
    // cudaMemcpy returns before the end where both are device memory, and where the source is pageable
    const Call call;
    return ok(cudaMemcpy(dst, src, n_bytes, cudaMemcpyDefault), "a copy failed") &&
           ok(cudaStreamSynchronize(nullptr), "a copy failed");
}

bool copy_async(void * dst, const void * src, size_t n_bytes, Stream stream) {
    const Call call;
    return n_bytes == 0 || ok(cudaMemcpyAsync(dst, src, n_bytes, cudaMemcpyDefault, native(stream)), "a copy failed");
}

bool copy_rows_async(void * dst, size_t dst_stride, const void * src, size_t src_stride, size_t row_bytes, size_t n_rows,
                     Stream stream) {
    if (n_rows <= 1 || (dst_stride == row_bytes && src_stride == row_bytes)) {
        return copy_async(dst, src, row_bytes*n_rows, stream);
    }
    if (row_bytes == 0) {
        return true;
    }
    const Call call;
    return ok(cudaMemcpy2DAsync(dst, dst_stride, src, src_stride, row_bytes, n_rows, cudaMemcpyDefault, native(stream)),
              "a copy failed");
}

bool zero_async(void * dst, size_t n_bytes, Stream stream) {
    const Call call;
    return n_bytes == 0 || ok(cudaMemsetAsync(dst, 0, n_bytes, native(stream)), "zeroing failed");
}

// ---- order -------------------------------------------------------------------------------------------------------------------

bool stream_create(Stream * out, bool urgent) {
    const Call call;
    int least = 0, greatest = 0;
    cudaStream_t stream = nullptr;
    const bool made = ok(cudaDeviceGetStreamPriorityRange(&least, &greatest), "a stream") &&
                      ok(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least), "a stream");
    *out = stream;
    return made;
}

void stream_destroy(Stream stream) {
    if (stream) {
        const Call call;
        ok(cudaStreamDestroy(native(stream)), "a stream");
    }
}

bool stream_sync(Stream stream) {
    const Call call;
    return ok(cudaStreamSynchronize(native(stream)), "an operation on the GPU failed") && check();
}

bool stream_capturing(Stream stream, uint64_t * id) {
    const Call call;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long number = 0;
    // CUDA 12 and 13 have different arguments behind the third; all of them have defaults
    if (cudaStreamGetCaptureInfo(native(stream), &status, &number) != cudaSuccess) {
        return false;
    }
    if (id) {
        *id = number;
    }
    return status == cudaStreamCaptureStatusActive;
}

bool event_create(Event * out, bool timed) {
    const Call call;
    cudaEvent_t event = nullptr;
    const bool made = ok(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming), "an event");
    *out = event;
    return made;
}

void event_destroy(Event event) {
    if (event) {
        const Call call;
        ok(cudaEventDestroy(native_event(event)), "an event");
    }
}

bool event_record(Event event, Stream stream) {
    const Call call;
    return ok(cudaEventRecord(native_event(event), native(stream)), "an event");
}

bool event_wait(Stream stream, Event event) {
    const Call call;
    return ok(cudaStreamWaitEvent(native(stream), native_event(event), 0), "an event");
}

bool event_done(Event event) {
    const Call call;
    if (error_stands()) {
        return true;  // "not ready" would take its place
    }
    const cudaError_t error = cudaEventQuery(native_event(event));
    if (error == cudaErrorNotReady) {
        return false;
    }
    if (error != cudaSuccess) {
        fail_later(error, "an operation on the GPU failed");
    }
    return true;
}

bool event_sync(Event event) {
    const Call call;
    return ok(cudaEventSynchronize(native_event(event)), "an operation on the GPU failed") && check();
}

float event_ms(Event from, Event to) {
    const Call call;
    float ms = 0.0f;
    return ok(cudaEventElapsedTime(&ms, native_event(from), native_event(to)), "an event") ? ms : -1.0f;
}

}  // namespace edgekv::gpu
