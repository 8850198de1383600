// The products in tiles with tiles in plain C++, for processors that have AVX-512 with VNNI and no AMX.
#include "kernels/simd/simd_avx512.h"
// the headers below use its Simd
#include "kernels/matmul/products_in_tiles.h"
#include "tiles_emulated.h"

namespace edgekv {

extern const ProductKernels kProductsEmulated;
const ProductKernels kProductsEmulated = {multiply_tiles<EmulatedTiles>, multiply_few_of_any, quantise, rms_factor, weigh_values, gate_values};

}  // namespace edgekv
