// Weights of prompt attention: 2 to the power of a logit, relative to a running maximum.
#pragma once

#include <math.h>

#include "kernels/decode/attend_softmax.h"

namespace edgekv {
namespace {

constexpr float kLog2e = 1.44269504f;
constexpr float kNothing = -INFINITY;  // the maximum of a query that has seen nothing; weights relative to it are NaN, and count as 0
// A running maximum moves only when weights relative to it would outgrow this power of two.
constexpr float kLazy = 8.0f;

// 2^x for x <= 127, to 1e-4 (Degree 3) or 1e-7 (5); 0 from -127 down, and for NaN. Minimax polynomials of (2^r - 1) / r over |r| <= 1/2.
template <int Degree>
inline F exp2_of(F x) {
    x = Simd::max(x, Simd::set1(-127.0f));
    const I n = Simd::to_int(x);
    const F r = Simd::sub(x, Simd::to_float(n));
    F poly;
    if constexpr (Degree == 3) {
        poly = Simd::fma(Simd::set1(0.0550089329f), r, Simd::set1(0.242210969f));
        poly = Simd::fma(poly, r, Simd::set1(0.693282902f));
    } else {
        poly = Simd::fma(Simd::set1(0.00132647273f), r, Simd::set1(0.00967151299f));
        poly = Simd::fma(poly, r, Simd::set1(0.0555073358f));
        poly = Simd::fma(poly, r, Simd::set1(0.240222424f));
        poly = Simd::fma(poly, r, Simd::set1(0.693147004f));
    }
    return Simd::as_float(Simd::iadd(Simd::as_int(Simd::fma(poly, r, Simd::set1(1.0f))), Simd::template left<23>(n)));
}

}  // namespace
}  // namespace edgekv
