#include "kernels/isa.h"

#include <initializer_list>

#include "kernels/simd/isa_dispatch.h"
#include "kernels/simd/tiles.h"

namespace edgekv {

#if EDGEKV_X86
static bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
#endif

bool isa_supported(Isa isa) {
    switch (isa) {
        case Isa::portable: return true;
#if EDGEKV_X86
        case Isa::avx2: return has_kernels(" avx2 ") && has_avx2();
        case Isa::avx512:
            return has_kernels(" avx512 ") && has_avx2() && __builtin_cpu_supports("avx512f") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
        case Isa::avx512bf16: return has_kernels(" avx512bf16 ") && isa_supported(Isa::avx512) && has_avx512_bf16();
        case Isa::amx: return has_kernels(" amx ") && isa_supported(Isa::avx512) && tiles_usable();
#elif EDGEKV_ARM64
        case Isa::neon: return true;
#endif
        default: return false;
    }
}

Isa isa_best() {
#if EDGEKV_X86
    // Intel's bf16 vectors are slower than its plain ones (LOG.md: 318 tokens/s against 342)
    if (__builtin_cpu_is("intel") && !isa_supported(Isa::amx) && isa_supported(Isa::avx512)) {
        return Isa::avx512;
    }
#endif
    for (const Isa isa : {Isa::amx, Isa::avx512bf16, Isa::avx512, Isa::avx2, Isa::neon}) {
        if (isa_supported(isa)) {
            return isa;
        }
    }
    return Isa::portable;
}

const char * isa_name(Isa isa) {
    switch (isa) {
        case Isa::portable: return "portable";
        case Isa::avx2: return "avx2";
        case Isa::avx512: return "avx512";
        case Isa::avx512bf16: return "avx512bf16";
        case Isa::amx: return "amx";
        case Isa::neon: return "neon";
    }
    return "?";
}

}  // namespace edgekv
