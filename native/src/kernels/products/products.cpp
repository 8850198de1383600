// Dispatch of products.
#include "kernels/products/products_internal.h"

#include "kernels/simd/isa_dispatch.h"

namespace edgekv {

bool product_supported(Isa isa) {
    return EDGEKV_X86 && isa != Isa::portable;
}

void multiply_rows(const ProductProblem & problem, int first, int end, Isa isa) {
#if EDGEKV_X86
    kernels_for(isa, kMultiplyPortable, kMultiplyAvx2, kMultiplyAvx2, kMultiplyAvx512Vnni)(problem, first, end);
#else
    (void) isa;
    kMultiplyPortable(problem, first, end);
#endif
}

}  // namespace edgekv
