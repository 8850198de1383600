// Failures as sentences, kept until a caller asks.
#include <utility>

#include "cuda/runtime/call.h"

namespace edgekv::gpu {
namespace {

thread_local std::string failure;         // the last
thread_local std::string first_failure;   // since take_failure()
thread_local std::string failed_launch;   // the first since check()

std::string version(int number) { return std::to_string(number/1000) + "." + std::to_string(number%1000/10); }

}  // namespace

std::string sentence(cudaError_t error) {
    int driver = 0, runtime = 0;
    switch (error) {
        case cudaErrorInsufficientDriver:
            cudaDriverGetVersion(&driver);
            cudaRuntimeGetVersion(&runtime);
            return driver == 0 ? "there is no NVIDIA driver: install one, or run on the CPU (EDGEKV_ATTENTION_DEVICE=cpu)"
                               : "the NVIDIA driver is for CUDA " + version(driver) + ", this build needs one for CUDA " +
                                     version(runtime) + ": update the driver, or install EdgeKV with an older CUDA toolkit";
        case cudaErrorNoDevice:
            return "no NVIDIA GPU is visible: look at nvidia-smi and at CUDA_VISIBLE_DEVICES, or run on the CPU "
                   "(EDGEKV_ATTENTION_DEVICE=cpu)";
        case cudaErrorNoKernelImageForDevice:
        case cudaErrorInvalidDeviceFunction:
        case cudaErrorUnsupportedPtxVersion: {
            const int arch = arch_of(current_device());
            return "this build has no code for a GPU of compute capability " + std::to_string(arch/10) + "." +
                   std::to_string(arch%10) + ": build EdgeKV with CMAKE_CUDA_ARCHITECTURES=" + std::to_string(arch) +
                   ", or run on the CPU (EDGEKV_ATTENTION_DEVICE=cpu)";
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

bool ok(cudaError_t error, const char * what) { return error == cudaSuccess || refuse(std::string(what) + ": " + sentence(error)); }

void fail_later(cudaError_t error, const char * what) {
    ok(error, what);
    if (failed_launch.empty()) {
        failed_launch = failure;
    }
}

bool launch_begins() { return cudaPeekAtLastError() == cudaSuccess; }

void launch_ends(bool none_stood) {
    if (none_stood) {
        if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
            const Call call;
            fail_later(error, "a kernel could not be started");
        }
    }
}

const char * last_error() { return failure.c_str(); }

bool check() {
    if (failed_launch.empty()) {
        return true;
    }
    failure = std::exchange(failed_launch, "");
    return false;
}

std::string take_failure() { return std::exchange(first_failure, ""); }

bool error_stands() { return cudaPeekAtLastError() != cudaSuccess; }

void clear_not_ready() {
    if (cudaPeekAtLastError() == cudaErrorNotReady) {
        cudaGetLastError();
    }
}

}  // namespace edgekv::gpu
