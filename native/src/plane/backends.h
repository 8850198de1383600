// ggml's backends where the build made each a library of its own, and the folder in which all libraries of the package lie.
#pragma once

#include "ggml-cpu.h"

#include <string>

namespace edgekv {

std::string library_folder();  // with the separator at its end; empty: the system does not tell

// Loads the backends that lie there, each in its best variant for this processor, and CUDA's in any build, if its libraries are there. false:
// none of the processor's lies there.
bool load_backends();

// How ggml's CPU backend converts rows of a type; after load_backends().
const ggml_type_traits_cpu * cpu_type_traits(ggml_type type);

}  // namespace edgekv
