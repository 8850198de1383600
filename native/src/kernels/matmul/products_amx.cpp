#include "kernels/simd/simd_avx512.h"
// The headers below use its Simd.
#include "kernels/matmul/products_in_tiles.h"
#include "kernels/simd/tiles_amx.h"

namespace edgekv {

const ProductKernels kProductsAmx = {multiply_tiles<AmxTiles>, multiply_few_of_any, quantise, rms_factor, weigh_values, gate_values};

}  // namespace edgekv
