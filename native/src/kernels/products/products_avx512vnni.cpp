#include "kernels/products/products_unpack.h"

namespace edgekv {
namespace {

// Sixteen rows in a vector. The multiplying instruction takes unsigned codes.
struct Lanes {
    using Ints   = __m512i;
    using Floats = __m512;
    static constexpr int kLanes = 16, kVectors = 1, kTokens = 8;
    static constexpr bool kFlip = true;

    static Floats load(const float * at) { return _mm512_load_ps(at); }
    static void store(float * at, Floats x) { _mm512_store_ps(at, x); }
    static Floats all(float x) { return _mm512_set1_ps(x); }
    static Floats mul(Floats x, Floats y) { return _mm512_mul_ps(x, y); }
    static Floats fma(Floats x, Floats y, Floats z) { return _mm512_fmadd_ps(x, y, z); }
    static Floats floats(Ints x) { return _mm512_cvtepi32_ps(x); }

    template <CodeRange RANGE, int STEPS, int NT>
    static inline void multiply(const uint8_t (*codes)[kProductRows][4], const TokenChunk * x, int from, Ints (&sums)[kVectors][NT]) {
#pragma GCC unroll 8
        for (int t = 0; t < NT; ++t) {
            sums[0][t] = _mm512_setzero_si512();
        }
#pragma GCC unroll 8
        for (int step = 0; step < STEPS; ++step) {
            const __m512i rows = _mm512_load_si512(codes[step]);
#pragma GCC unroll 8
            for (int t = 0; t < NT; ++t) {
                int32_t word;
                std::memcpy(&word, x[t].codes + from + 4 * step, sizeof word);
                sums[0][t] = _mm512_dpbusd_epi32(sums[0][t], rows, _mm512_set1_epi32(word));
            }
        }
    }
};

}  // namespace
}  // namespace edgekv

// the header below uses its Lanes
#include "kernels/products/products_kernel.h"

namespace edgekv {

const ProductKernels kProductsAvx512Vnni = {multiply, quantise};

}  // namespace edgekv
