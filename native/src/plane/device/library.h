// The libraries with device code, opened at first use.
#pragma once

#include "plane/device/engine.h"

#include "ggml-backend.h"

struct llama_context;

namespace edgekv {

// null: this installation has no library for such devices
const DeviceLibrary * open_device_library(edgekv_device_kind kind);

int cuda_index(ggml_backend_dev_t device);    // CUDA's number of the device
bool cuda_usable(ggml_backend_dev_t device);  // this installation has kernels for it

// The stream of a context's graphs on a CUDA device; null: there is none. From now on the context's backend serves custom nodes.
void * cuda_stream(llama_context * lctx, ggml_backend_dev_t device);

}  // namespace edgekv
