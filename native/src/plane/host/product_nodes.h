// Products of weights with a batch of tokens. They replace ggml's node where our kernel is faster.
#pragma once

#include "kernels/products/products.h"
#include "llama-edgekv.h"

#include <cstdint>

namespace edgekv {

// Builds the node that multiplies. Null: ggml's node serves.
ggml_tensor * build_product(const llama_edgekv_product & args);

// Whether weights of this type have such a node on this machine. layout: see edgekv_multiplies().
bool has_product(ggml_type weights, const char * layout);

// for tests: see edgekv_testing.h
int64_t use_products(bool use);

// How products fetch weights from the next graph on.
void set_weight_fetch(WeightWalk walk, WeightFetch fetch);

}  // namespace edgekv
