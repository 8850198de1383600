// The products by instruction set.
#pragma once

#include "kernels/matmul/products.h"

namespace edgekv {

struct ProductKernels {
    void (*multiply)(const ProductProblem & problem, int first, int end);
    void (*multiply_few)(const ProductProblem & problem, int first, int end);
    void (*quantise)(const float * values, int n, TokenForm form, TokenChunk * out, size_t stride);
    float (*rms_factor)(const float * values, int n, float eps);
    void (*weigh_values)(const float * values, float factor, const float * weights, int n, float * out);
    void (*gate_values)(GateForm form, const float * gate, const float * up, int n, float * out);
};
extern const ProductKernels kProductsAvx2;
extern const ProductKernels kProductsAvxVnni;
extern const ProductKernels kProductsAvx512Vnni;
extern const ProductKernels kProductsAmx;  // sixteens too

// By name: "avx2", "avxvnni", "avx512vnni" or "amx"; null if not compiled in or not usable on this CPU.
const ProductKernels * product_kernels(const char * name);

}  // namespace edgekv
