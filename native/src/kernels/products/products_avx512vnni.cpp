#include <immintrin.h>

namespace edgekv {
namespace {

struct Integers {
    static __m256i dot(__m256i codes, __m256i x) { return _mm256_dpbusd_epi32(_mm256_setzero_si256(), codes, x); }
};

}  // namespace
}  // namespace edgekv

// the header below uses its Integers
#include "kernels/products/products_kernel.h"

namespace edgekv {

const MultiplyFn kMultiplyAvx512Vnni = multiply;

}  // namespace edgekv
