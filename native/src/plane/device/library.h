// The libraries with device code, opened when they are first asked for.
#pragma once

#include "plane/device/engine.h"

#include "ggml-backend.h"

struct llama_context;

namespace edgekv {

// null: this installation has none for such devices
const DeviceLibrary * open_device_library(edgekv_device_kind kind);

int cuda_index(ggml_backend_dev_t device);    // CUDA's number of it
bool cuda_usable(ggml_backend_dev_t device);  // this installation has kernels that run there

// the stream of a context's graphs on a CUDA device; from now on its backend serves custom nodes. null: there is no such stream
void * cuda_stream(llama_context * lctx, ggml_backend_dev_t device);

}  // namespace edgekv
