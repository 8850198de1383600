// Products of weights with a batch of tokens. They replace ggml's node where our kernel is faster.
#pragma once

#include "kernels/matmul/products.h"
#include "llama-edgekv.h"

#include <cstdint>

namespace edgekv {

// Builds the node that multiplies. Null: ggml's node serves.
ggml_tensor * build_product(const llama_edgekv_product & args);

// The same where measurements or tests chose ggml's.
ggml_tensor * make_product(const llama_edgekv_product & args);

// Whether weights of this type have such a node on this machine. layout: the name of ggml's buffer type; null: rows as in the file.
bool has_product(ggml_type weights, const char * layout);
const char * layout_of(const ggml_tensor * weights);
WeightWalk walk_of(ggml_type weights, const char * layout);  // of those that have

// From the next graph on: how products fetch weights, and which are left to ggml.
void set_weight_fetch(WeightWalk walk, WeightFetch fetch);
void leave_products(ggml_type weights, const char * layout, bool several, bool leave);
bool leaves_products(ggml_type weights, const char * layout, bool several);

// for tests: see edgekv_testing.h
enum class ProductUse { none, all, chosen };
int64_t use_products(ProductUse use);

}  // namespace edgekv
