// Products of weights with a batch of tokens. They replace ggml's node where our kernel is quicker.
#pragma once

#include "llama-edgekv.h"

#include <cstdint>

namespace edgekv {

// Makes the node that multiplies, while a graph is built. Null: ggml's node serves.
ggml_tensor * build_product(const llama_edgekv_product & args);

// for tests: see edgekv_testing.h
int64_t use_products(bool use);

}  // namespace edgekv
