// Calls of the CUDA runtime, and their errors.
#pragma once

#include <string>

#include "cuda/gpu.h"

namespace edgekv::gpu {

// Wraps a call of the runtime. An earlier error stays; the call's own error is returned and cleared.
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

// Sentences for last_error(). refuse() returns false.
bool refuse(const std::string & text);
std::string sentence(cudaError_t error);
bool ok(cudaError_t error, const char * what);           // refuses on an error
void fail_later(cudaError_t error, const char * what);  // keeps the error for check()

int attribute(cudaDeviceAttr which, int index);
int arch_of(int index);  // 89: compute capability 8.9
int current_device();

inline cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace edgekv::gpu
