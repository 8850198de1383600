// Products of weights with a batch of tokens. They replace ggml's node where our kernel is quicker.
#pragma once

#include "llama-edgekv.h"

#include <cstdint>

namespace edgekv {

// Makes the node that multiplies, while a graph is built. Null: ggml's node serves.
ggml_tensor * build_product(const llama_edgekv_product & args);

// Whether weights of that type have such a node, here. layout: see edgekv_multiplies().
bool has_product(ggml_type weights, const char * layout);

// for tests: see edgekv_testing.h
int64_t use_products(bool use);

}  // namespace edgekv
