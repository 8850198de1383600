// The card's properties, and the shared memory that it allows a kernel.
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "cuda/runtime/call.h"

namespace edgekv::gpu {
namespace {

__global__ void probe(int * out) { *out = 1; }

// makes a device current on this thread for a scope
class OnDevice {
public:
    explicit OnDevice(int index) : before(current_device()) { set = cudaSetDevice(index); }
    ~OnDevice() { cudaSetDevice(before); }
    cudaError_t status() const { return set; }

private:
    int before;
    cudaError_t set;
};

// Asks once: all properties together take milliseconds.
bool name_of(int index, std::string & out) {
    static std::mutex mutex;
    static std::map<int, std::string> names;
    std::lock_guard<std::mutex> guard(mutex);
    std::string & name = names[index];
    cudaDeviceProp properties;
    if (name.empty() && ok(cudaGetDeviceProperties(&properties, index), "the GPU cannot be asked")) {
        name = properties.name;
    }
    out = name;
    return !name.empty();
}

}  // namespace

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

bool may_overlap(const void * kernel) {
    static std::mutex mutex;
    static std::map<std::pair<int, const void *>, bool> known;
    static const char * const asked = std::getenv("GGML_CUDA_PDL");
    const int index = current_device();
    std::lock_guard<std::mutex> guard(mutex);
    const auto [at, is_new] = known.try_emplace({index, kernel}, false);
    cudaFuncAttributes attributes;
    if (is_new && (asked == nullptr || std::atoi(asked) != 0)) {
        const Call call;
        at->second = cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
    }
    return at->second;
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
    const OnDevice on(index);
    if (!ok(on.status(), "the GPU cannot be used") || !name_of(index, out.name) ||
        !ok(cudaMemGetInfo(&out.free_bytes, &out.total_bytes), "the GPU's memory cannot be asked")) {
        return false;
    }
    out.arch = arch_of(index);
    out.n_sm = attribute(cudaDevAttrMultiProcessorCount, index);
    out.has_display = attribute(cudaDevAttrKernelExecTimeout, index) != 0;
    cudaDriverGetVersion(&out.driver);
    cudaRuntimeGetVersion(&out.runtime);
    // Memory that is allocated pinned has one address under unified addressing. Windows and WSL2 lack that of memory which is pinned later.
    out.pins_later = attribute(cudaDevAttrHostRegisterSupported, index) && attribute(cudaDevAttrCanUseHostPointerForRegisteredMem, index);
    out.maps_host = attribute(cudaDevAttrCanMapHostMemory, index) && attribute(cudaDevAttrUnifiedAddressing, index);
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

}  // namespace edgekv::gpu
