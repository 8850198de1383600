// The products by instruction set.
#pragma once

#include "kernels/products/products.h"

namespace edgekv {

struct ProductKernels {
    void (*multiply)(const ProductProblem & problem, int first, int end);
    void (*multiply_token)(const ProductProblem & problem, int first, int end);
    void (*quantise)(const float * values, int n, TokenForm form, TokenChunk * out, size_t stride);
};
extern const ProductKernels kProductsPortable;
extern const ProductKernels kProductsAvx2;
extern const ProductKernels kProductsAvx512Vnni;

}  // namespace edgekv
