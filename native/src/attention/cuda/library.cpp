#include "attention/cuda/library.h"

#include "attention/backends.h"
#include "attention/cuda/cuda_nodes.h"
#include "ggml-edgekv-cuda.h"
#include "llama-edgekv.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace edgekv {
namespace {

using Entry = const DeviceLibrary * (*)();

// opens the library by its full path: the system's search folders may hold another one
const DeviceLibrary * open(const std::string & path) {
    void * module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    auto entry = module ? reinterpret_cast<Entry>(dlsym(module, "edgekv_device_library")) : nullptr;
    const DeviceLibrary * library = entry ? entry() : nullptr;
    return library && library->abi == kEngineAbi ? library : nullptr;
}

// The library's path; "": there is none. Tests build the emulated one and name its path.
std::string path_of(edgekv_device_kind kind) {
    if (kind == EDGEKV_DEVICE_EMULATED) {
        const char * named = std::getenv("EDGEKV_EMULATOR");
        return named ? named : "";
    }
    const std::string & folder = device_folder().path;
    return folder.empty() ? "" : folder + "libedgekv-cuda.so";
}

const ggml_edgekv_cuda_custom kCustomNodes = { device_node_supported, device_graph_begin, device_node_compute };

}  // namespace

const DeviceLibrary * open_device_library(edgekv_device_kind kind) {
    static std::mutex mutex;
    static const DeviceLibrary * libraries[3] = {};
    static bool tried[3] = {};

    std::lock_guard<std::mutex> lock(mutex);
    if (kind != EDGEKV_DEVICE_CUDA && kind != EDGEKV_DEVICE_EMULATED) {
        return nullptr;
    }
    if (!tried[kind]) {
        const std::string path = path_of(kind);
        tried[kind]     = !path.empty();
        libraries[kind] = path.empty() ? nullptr : open(path);
    }
    return libraries[kind];
}

int backend_index(ggml_backend_dev_t device) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device);
    int i = 0;
    while (i < static_cast<int>(ggml_backend_reg_dev_count(reg)) - 1 && ggml_backend_reg_dev_get(reg, i) != device) {
        i += 1;
    }
    return i;
}

bool runs_nodes(edgekv_device_kind kind, ggml_backend_dev_t device) {
    const bool emulates = std::strcmp(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)), "EMULATED") == 0;
    if (emulates != (kind == EDGEKV_DEVICE_EMULATED)) {
        return false;
    }
    const DeviceLibrary * library = open_device_library(kind);
    edgekv_device_info info;
    return library && library->info(backend_index(device), &info) && info.usable;
}

bool pins_later(edgekv_device_kind kind, ggml_backend_dev_t device) {
    const char * at_once = std::getenv("EDGEKV_PIN_AT_ONCE");
    const DeviceLibrary * library = open_device_library(kind);
    edgekv_device_info info;
    return !(at_once && std::strcmp(at_once, "1") == 0) && library && library->info(backend_index(device), &info) && info.pins_later;
}

void * backend_stream(llama_context * lctx, ggml_backend_dev_t device) {
    ggml_backend_reg_t reg     = ggml_backend_dev_backend_reg(device);
    ggml_backend_t     backend = llama_edgekv_backend(lctx, device);
    auto set    = reinterpret_cast<ggml_edgekv_cuda_set_custom_t>(ggml_backend_reg_get_proc_address(reg, GGML_EDGEKV_CUDA_SET_CUSTOM));
    auto stream = reinterpret_cast<ggml_edgekv_cuda_stream_t>(ggml_backend_reg_get_proc_address(reg, GGML_EDGEKV_CUDA_STREAM));
    if (!set || !stream || !backend) {
        return nullptr;
    }
    set(&kCustomNodes);
    return stream(backend);
}

}  // namespace edgekv
