// ggml's backends where the build made each a library of its own, and the folder in which all libraries of the package lie.
#pragma once

#include <string>

namespace edgekv {

std::string library_folder();  // with the separator at its end; empty: the system does not tell

// Loads what lies there, the best variant for this processor among them; where backends are linked in, nothing. false: none is there.
bool load_backends();

}  // namespace edgekv
