// Calls of the CUDA runtime, and their errors.
#pragma once

#include <string>

#include "cuda/gpu.h"

namespace edgekv::gpu {

// Stands around a call of the runtime. An error that was there before stays; the error that the call leaves is answered and taken away.
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
bool ok(cudaError_t error, const char * what);           // refuses where there is an error
void fail_later(cudaError_t error, const char * what);  // check() will tell it

int attribute(cudaDeviceAttr which, int index);
int arch_of(int index);  // 89: compute capability 8.9
int current_device();

inline cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace edgekv::gpu
