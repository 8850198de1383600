// Dispatch of products.
#include "kernels/matmul/products_internal.h"
#include "kernels/simd/isa_dispatch.h"

namespace edgekv {

namespace {

#if EDGEKV_X86
constexpr KernelTables<ProductKernels> kTables = {
    nullptr, EDGEKV_BUILT_PLAIN(avx2, avxvnni, kProductsAvx2),
    EDGEKV_BUILT(avxvnni, kProductsAvxVnni), EDGEKV_BUILT_PLAIN(avx2, avxvnni, kProductsAvx2),
    EDGEKV_BUILT(avx512vnni, kProductsAvx512Vnni)};
constexpr const ProductKernels * kAmx = EDGEKV_BUILT(amx, kProductsAmx);
#else
constexpr KernelTables<ProductKernels> kTables = {};
#endif

}  // namespace

const ProductKernels & product_kernels(Isa isa) {
#if EDGEKV_X86
    isa = isa == Isa::portable ? isa_best() : isa;
    if (isa == Isa::amx) {
        return *kAmx;
    }
#endif
    return kernels_for(isa, kTables);
}

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

WeightWalk weight_walk(WeightType type, WeightLayout layout) {
    const bool of_k = type == WeightType::q4_k || type == WeightType::q5_k || type == WeightType::q6_k;
    return layout == WeightLayout::eights ? (of_k ? WeightWalk::eights_of_k : WeightWalk::eights) : of_k ? WeightWalk::four : WeightWalk::sixteen;
}

bool product_supported(Isa isa, WeightLayout layout) {
    return EDGEKV_X86 && isa != Isa::portable && (layout != WeightLayout::sixteens || isa == Isa::amx);
}

const ProductKernels * product_kernels(const char * name) {
#if EDGEKV_X86
    if (std::strcmp(name, "amx") == 0) {
        return isa_supported(Isa::amx) ? kAmx : nullptr;
    }
#endif
    return kernels_by_name(name, kTables);
}

}  // namespace edgekv
