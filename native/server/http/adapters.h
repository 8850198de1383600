// The LoRA adapters that a request names, and those of a server that has not applied them yet; control vectors. Threads of requests, and of the start.
#pragma once

#include "common.h"

#include <cstddef>
#include <map>

namespace edgekv_server {

// Throws std::invalid_argument for an adapter that the server has not. `asked`: scales by number.
void check_adapters(const std::map<int, float> & asked, size_t n_known);

// --lora-init-without-apply: no adapter counts until a request says so.
void set_aside(common_params & params);

// Puts the control vectors of the start into force. False, and llama.cpp's log says why, if they cannot be read or do not fit the model.
bool steer(const common_params & params, llama_context * lctx);

}  // namespace edgekv_server
