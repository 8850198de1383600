// Dispatch of products.
#include "kernels/products/products_internal.h"
#include "kernels/products/weight_blocks.h"
#include "kernels/simd/isa_dispatch.h"

namespace edgekv {

namespace {

const ProductKernels & kernels(Isa isa) {
#if EDGEKV_X86
    return kernels_for(isa, kProductsPortable, kProductsAvx2, kProductsAvx2, kProductsAvx512Vnni);
#else
    (void) isa;
    return kProductsPortable;
#endif
}

}  // namespace

TokenForm token_form(WeightType type) { return weight_values(type) == kProductChunk ? TokenForm::of_256 : TokenForm::of_32; }

int weight_values(WeightType type) {
    switch (type) {
        case WeightType::q4_k:
        case WeightType::q5_k:
        case WeightType::q6_k:
        case WeightType::iq4_xs: return kProductChunk;
        default: return kProductBlock;
    }
}

size_t weight_bytes(WeightType type) {
    switch (type) {
        case WeightType::q4_0: return sizeof(BlockQ4_0);
        case WeightType::q4_1: return sizeof(BlockQ4_1);
        case WeightType::q5_0: return sizeof(BlockQ5_0);
        case WeightType::q5_1: return sizeof(BlockQ5_1);
        case WeightType::q8_0: return sizeof(BlockQ8_0);
        case WeightType::q4_k: return sizeof(BlockQ4_K);
        case WeightType::q5_k: return sizeof(BlockQ5_K);
        case WeightType::q6_k: return sizeof(BlockQ6_K);
        case WeightType::iq4_nl: return sizeof(BlockIQ4_NL);
        case WeightType::iq4_xs: return sizeof(BlockIQ4_XS);
        case WeightType::mxfp4: return sizeof(BlockMXFP4);
    }
    return 0;
}

bool product_supported(Isa isa) { return EDGEKV_X86 && isa != Isa::portable; }

void multiply_rows(const ProductProblem & problem, int first, int end, Isa isa) { kernels(isa).multiply(problem, first, end); }

void quantise_token(const float * values, int n, TokenForm form, TokenChunk * out, size_t stride, Isa isa) {
    kernels(isa).quantise(values, n, form, out, stride);
}

}  // namespace edgekv
