#include "kernels/products/products_unpack.h"

namespace edgekv {
namespace {

// Eight rows in a vector, and two vectors.
struct Lanes {
    using Ints   = __m256i;
    using Floats = __m256;
    static constexpr int kLanes = 8, kVectors = 2, kTokens = 4;
    static constexpr bool kFlip = false;

    static Floats load(const float * at) { return _mm256_load_ps(at); }
    static void store(float * at, Floats x) { _mm256_store_ps(at, x); }
    static Floats all(float x) { return _mm256_set1_ps(x); }
    static Floats mul(Floats x, Floats y) { return _mm256_mul_ps(x, y); }
    static Floats fma(Floats x, Floats y, Floats z) { return _mm256_fmadd_ps(x, y, z); }
    static Floats floats(Ints x) { return _mm256_cvtepi32_ps(x); }

    // Steps of four codes whose products, two and two, are added in 16 bits: 8 * 2 * 15 * 127, 4 * 2 * 31 * 127, 2 * 2 * 63 * 127 and
    // 2 * 127 * 127 fit.
    static constexpr int at_once(CodeRange range) {
        return range == CodeRange::u4 ? 8 : range == CodeRange::u5 ? 4 : range == CodeRange::u6 ? 2 : 1;
    }

    // Makes the compiler add now: gcc would keep all steps' products in memory, and add them at the end.
    static void keep(__m256i & x) { __asm__("" : "+x"(x)); }

    template <CodeRange RANGE, int STEPS, int NT>
    static inline void multiply(const uint8_t (*codes)[kProductRows][4], const TokenChunk * x, int from, Ints (&sums)[kVectors][NT]) {
        constexpr int at_once_here = at_once(RANGE) < STEPS ? at_once(RANGE) : STEPS;
        const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
        for (int first = 0; first < STEPS; first += at_once_here) {
            __m256i part[kVectors][NT];
#pragma GCC unroll 8
            for (int step = first; step < first + at_once_here; ++step) {
                const auto * at = reinterpret_cast<const __m256i *>(codes[step]);
                const __m256i rows[kVectors] = {_mm256_load_si256(at), _mm256_load_si256(at + 1)};
#pragma GCC unroll 4
                for (int t = 0; t < NT; ++t) {
                    int32_t word;
                    std::memcpy(&word, x[t].codes + from + 4 * step, sizeof word);
                    const __m256i token = _mm256_set1_epi32(word);
#pragma GCC unroll 2
                    for (int v = 0; v < kVectors; ++v) {
                        const __m256i products = RANGE == CodeRange::i8
                            ? _mm256_maddubs_epi16(_mm256_abs_epi8(rows[v]), _mm256_sign_epi8(token, rows[v]))
                            : _mm256_maddubs_epi16(rows[v], token);
                        part[v][t] = step == first ? products : _mm256_add_epi16(part[v][t], products);
                        if (at_once_here > 2) {
                            keep(part[v][t]);
                        }
                    }
                }
            }
#pragma GCC unroll 2
            for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
                for (int t = 0; t < NT; ++t) {
                    const __m256i wide = _mm256_madd_epi16(part[v][t], ones);
                    sums[v][t] = first == 0 ? wide : _mm256_add_epi32(sums[v][t], wide);
                }
            }
        }
    }
};

}  // namespace
}  // namespace edgekv

// the header below uses its Lanes
#include "kernels/products/products_kernel.h"

namespace edgekv {

const ProductKernels kProductsAvx2 = {multiply, quantise};

}  // namespace edgekv
