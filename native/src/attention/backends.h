// ggml's backends, in builds that made each a separate library, and the folder of the package's libraries.
#pragma once

#include "ggml-cpu.h"

#include <string>

namespace edgekv {

std::string library_folder();  // ends with the separator; empty: the system does not know it

// Where the libraries for NVIDIA's GPUs lie: beside ours in a build with CUDA, else in a plug-in's folder beside the package.
struct DeviceFolder {
    std::string path;     // ends with the separator; empty: there are none
    std::string problem;  // why a plug-in is refused, as a clause; empty: none is
};
const DeviceFolder & device_folder();

// Loads the backends of library_folder(), each in its best variant for this processor, and CUDA's from device_folder(), in any build. false: none
// of the processor's lies there.
bool load_backends();

// The CPU backend's conversions of rows of a type. Call it after load_backends().
const ggml_type_traits_cpu * cpu_type_traits(ggml_type type);

}  // namespace edgekv
