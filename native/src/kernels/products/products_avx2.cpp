#include <immintrin.h>

namespace edgekv {
namespace {

struct Integers {
    // Sums of four products each: 15 * 127 twice fits 16 bits.
    static __m256i dot(__m256i codes, __m256i x) {
        return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1));
    }
};

}  // namespace
}  // namespace edgekv

// the header below uses its Integers
#include "kernels/products/products_kernel.h"

namespace edgekv {

const MultiplyFn kMultiplyAvx2 = multiply;

}  // namespace edgekv
