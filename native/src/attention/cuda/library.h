// The libraries with device code, opened at first use.
#pragma once

#include "attention/cuda/engine.h"

#include "ggml-backend.h"

struct llama_context;

namespace edgekv {

// null: this installation has no library for such devices
const DeviceLibrary * open_device_library(edgekv_device_kind kind);

int backend_index(ggml_backend_dev_t device);  // its number in its backend, which is CUDA's

// Whether this installation has kernels for nodes on a ggml backend's device: a CUDA device, or the emulated one behind the backend that tests
// load (native/tests/backend).
bool runs_nodes(edgekv_device_kind kind, ggml_backend_dev_t device);

// Whether a home for such a device is pinned as tokens come. EDGEKV_PIN_AT_ONCE=1: at the start, as where the driver cannot.
bool pins_later(edgekv_device_kind kind, ggml_backend_dev_t device);

// The stream of a context's graphs on such a device; null: there is none. From now on the context's backend serves custom nodes.
void * backend_stream(llama_context * lctx, ggml_backend_dev_t device);

}  // namespace edgekv
