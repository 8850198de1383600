#include "device_library.h"

#include "ggml-edgekv-cuda.h"
#include "llama-edgekv.h"
#include "nodes.h"

#include <mutex>
#include <string>

#if defined(_WIN32)
#    include <windows.h>
#else
#    include <dlfcn.h>
#endif

namespace edgekv {

namespace {

using Entry = const DeviceLibrary * (*)();

// the folder of this library, with a separator at its end; "": not to be found
std::string own_folder() {
#if defined(_WIN32)
    HMODULE self;
    char    path[4096];
    if (!GetModuleHandleExA(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
                            reinterpret_cast<const char *>(&open_device_library), &self)) {
        return "";
    }
    const DWORD n = GetModuleFileNameA(self, path, sizeof(path));
    if (n == 0 || n == sizeof(path)) {
        return "";
    }
    const std::string own = path;
#else
    Dl_info self;
    if (!dladdr(reinterpret_cast<const void *>(&open_device_library), &self)) {
        return "";
    }
    const std::string own = self.dli_fname;
#endif
    return own.substr(0, own.find_last_of("/\\") + 1);
}

// by its full path: what else the system would search may hold another
const DeviceLibrary * open_beside(const char * name) {
    const std::string folder = own_folder();
    if (folder.empty()) {
        return nullptr;
    }
#if defined(_WIN32)
    // the libraries that it needs are looked for beside it, too
    HMODULE module = LoadLibraryExA((folder + name + ".dll").c_str(), nullptr, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
    auto entry = module ? reinterpret_cast<Entry>(GetProcAddress(module, "edgekv_device_library")) : nullptr;
#else
#    if defined(__APPLE__)
    const char * suffix = ".dylib";
#    else
    const char * suffix = ".so";
#    endif
    void * module = dlopen((folder + "lib" + name + suffix).c_str(), RTLD_NOW | RTLD_LOCAL);
    auto entry = module ? reinterpret_cast<Entry>(dlsym(module, "edgekv_device_library")) : nullptr;
#endif
    const DeviceLibrary * library = entry ? entry() : nullptr;

    return library && library->abi == kPlaneAbi ? library : nullptr;
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
        tried[kind]     = true;
        libraries[kind] = open_beside(kind == EDGEKV_DEVICE_CUDA ? "edgekv-cuda" : "edgekv-emulated");
    }

    return libraries[kind];
}

int cuda_index(ggml_backend_dev_t device) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device);
    int i = 0;
    while (i < (int) ggml_backend_reg_dev_count(reg) - 1 && ggml_backend_reg_dev_get(reg, i) != device) {
        i += 1;
    }

    return i;
}

bool cuda_usable(ggml_backend_dev_t device) {
    const DeviceLibrary * library = open_device_library(EDGEKV_DEVICE_CUDA);
    edgekv_device_info info;

    return library && library->info(cuda_index(device), &info) && info.usable;
}

void * cuda_stream(llama_context * lctx, ggml_backend_dev_t device) {
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
