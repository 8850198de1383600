// Exponentials of vectors, over the Simd of the translation unit that includes this.
#pragma once

namespace edgekv {
namespace {

using F = Simd::F;
using I = Simd::I;

constexpr int kLanes = Simd::kLanes;

// exp(x) for x <= 88, with an error of at most about 1 ulp + |x| * 2^-24. Subnormal results and exp(-inf) are 0.
inline F vector_exp(F x) {
    const F y = Simd::mul(x, Simd::set1(1.44269504f));
    const F n = Simd::round(y);
    const F r = Simd::sub(y, n);
    // (2^r - 1) / r, minimax over |r| <= 1/2
    F poly = Simd::set1(0.000153533576f);
    poly = Simd::fma(poly, r, Simd::set1(0.00133988785f));
    poly = Simd::fma(poly, r, Simd::set1(0.00961843785f));
    poly = Simd::fma(poly, r, Simd::set1(0.0555033237f));
    poly = Simd::fma(poly, r, Simd::set1(0.240226477f));
    poly = Simd::fma(poly, r, Simd::set1(0.693147182f));
    const F e = Simd::fma(poly, r, Simd::set1(1.0f));
    return Simd::zero_below(Simd::scale2(e, n), x, Simd::set1(-87.0f));
}

// cap * tanh(x / cap)
inline F vector_softcap(F x, float cap) {
    const F t = Simd::min(Simd::max(Simd::mul(x, Simd::set1(2.0f / cap)), Simd::set1(-30.0f)), Simd::set1(30.0f));
    const F e = vector_exp(t);
    const F one = Simd::set1(1.0f);
    return Simd::mul(Simd::set1(cap), Simd::div(Simd::sub(e, one), Simd::add(e, one)));
}

}  // namespace
}  // namespace edgekv
