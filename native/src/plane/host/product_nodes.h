// Products of weights with a batch of tokens, in place of ggml's node, where our kernel is the quicker one.
#pragma once

#include "llama-edgekv.h"

#include <cstdint>

namespace edgekv {

// The node that multiplies; null: ggml's serves. While a graph is built.
ggml_tensor * build_product(const llama_edgekv_product & args);

// for tests: see edgekv_testing.h
int64_t use_products(bool use);

}  // namespace edgekv
