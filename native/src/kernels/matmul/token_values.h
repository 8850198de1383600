// A token's last node, computed together with the quantising, over the Simd of the translation unit that includes this.
#pragma once

#include <math.h>

#include "kernels/matmul/products_kernel.h"
#include "kernels/simd/simd_exp.h"

namespace edgekv {
namespace {

// Sums within a chunk are in single precision, in kLanes parts; the sum over chunks is in double, as all sums are in ggml.
float rms_factor(const float * values, int n, float eps) {
    double sum = 0.0;
    for (int first = 0; first < n; first += kProductChunk) {
        const int end = first + kProductChunk < n ? first + kProductChunk : n;
        F part = Simd::zero();
        for (int i = first; i < end; i += kLanes) {
            const F x = Simd::load(values + i);
            part = Simd::fma(x, x, part);
        }
        sum += static_cast<double>(Simd::sum(part));
    }
    return 1.0f / sqrtf(static_cast<float>(sum / n) + eps);
}

void weigh_values(const float * values, float factor, const float * weights, int n, float * out) {
    const F by = Simd::set1(factor);
    for (int i = 0; i < n; i += kLanes) {
        Simd::store(out + i, Simd::mul(Simd::mul(Simd::load(values + i), by), Simd::load(weights + i)));
    }
}

void gate_values(GateForm form, const float * gate, const float * up, int n, float * out) {
    const F one = Simd::set1(1.0f), linear = Simd::set1(kGeluLinear), cubic = Simd::set1(kGeluCubic);
    for (int i = 0; i < n; i += kLanes) {
        const F x = Simd::load(gate + i);
        const F y = form == GateForm::gelu ? Simd::mul(Simd::mul(linear, x), Simd::fma(cubic, Simd::mul(x, x), one)) : x;
        const F e = vector_exp(Simd::min(y, Simd::sub(Simd::zero(), y)));  // of -|y|, which does not overflow
        const F s = Simd::div(Simd::where_positive(y, one, e), Simd::add(one, e));
        Simd::store(out + i, Simd::mul(Simd::mul(x, s), Simd::load(up + i)));
    }
}

}  // namespace
}  // namespace edgekv
