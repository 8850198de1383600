// The products by instruction set.
#pragma once

#include "kernels/matmul/products.h"

namespace edgekv {

extern const ProductKernels kProductsAvx2;
extern const ProductKernels kProductsAvxVnni;
extern const ProductKernels kProductsAvx512Vnni;
extern const ProductKernels kProductsAmx;  // sixteens too

// By name: "avx2", "avxvnni", "avx512vnni" or "amx"; null if not compiled in or not usable on this CPU.
const ProductKernels * product_kernels(const char * name);

}  // namespace edgekv
