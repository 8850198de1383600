// The products by instruction set.
#pragma once

#include "kernels/products/products.h"

namespace edgekv {

using MultiplyFn = void (*)(const ProductProblem & problem, int first, int end);
extern const MultiplyFn kMultiplyPortable;
extern const MultiplyFn kMultiplyAvx2;
extern const MultiplyFn kMultiplyAvx512Vnni;

}  // namespace edgekv
