#include "attention/backends.h"

#include "edgekv_sources.h"
#include "ggml-backend.h"

#include <dlfcn.h>

#include <fstream>

namespace edgekv {

std::string library_folder() {
    Dl_info self;
    if (!dladdr(reinterpret_cast<const void *>(&library_folder), &self)) {
        return "";
    }
    const std::string own = self.dli_fname;
    return own.substr(0, own.find_last_of('/') + 1);
}

// Another build's kernels may compute with other layouts, and its ggml may be another one: a plug-in says in a file which sources it is made of, and
// nothing of it is opened before that is compared.
static DeviceFolder find_device_folder() {
    const std::string own = library_folder();
    if (own.empty() || std::ifstream(own + "libedgekv-cuda.so").good()) {
        return { own, "" };
    }
    DeviceFolder found;
    for (const std::string cuda : { "13", "12" }) {
        const std::string folder = own + "../../edgekv_cuda" + cuda + "/lib/";  // pip puts it beside the package
        if (!std::ifstream(folder + "libedgekv-cuda.so").good()) {
            continue;
        }
        std::string sources;
        std::ifstream(folder + "sources.txt") >> sources;
        if (sources == EDGEKV_SOURCES) {
            return { folder, "" };
        }
        found.problem = "the plug-in edgekv-cuda" + cuda + " is of another build than this EdgeKV; install both from one release";
    }
    return found;
}

const DeviceFolder & device_folder() {
    static const DeviceFolder found = find_device_folder();
    return found;
}

static decltype(&ggml_get_type_traits_cpu) g_type_traits = nullptr;

bool load_backends() {
    ggml_log_callback before;
    void * user;
    ggml_log_get(&before, &user);
    ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr);  // ggml would log each library that it opens
    if (ggml_backend_reg_count() == 0) {
        ggml_backend_load_all_from_path(library_folder().c_str());  // without a path, ggml searches the current folder
    }
    if (const std::string & folder = device_folder().path; !folder.empty() && !ggml_backend_reg_by_name("CUDA")) {
        ggml_backend_load((folder + "libggml-cuda.so").c_str());  // linked to nothing: without NVIDIA's libraries it cannot be opened
    }
    ggml_log_set(before, user);

    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (cpu) {
        void * found  = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), "ggml_get_type_traits_cpu");
        g_type_traits = reinterpret_cast<decltype(g_type_traits)>(found);
    }
    return g_type_traits != nullptr;
}

const ggml_type_traits_cpu * cpu_type_traits(ggml_type type) { return g_type_traits(type); }

}  // namespace edgekv
