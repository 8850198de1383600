// A program that builds for one processor run first: lists the kernels that serve on it, as kernels.cmake names them.
#include <cstdio>

#include "kernels/simd/isa_dispatch.h"

using namespace edgekv;

int main() {
    std::printf("portable");
#if EDGEKV_X86
    const bool vnni = isa_supported(Isa::avx512) && has_vnni();  // where AVX-512 lacks it, matrices are AVX2's
    for (const Isa isa : {Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx}) {
        if (isa_supported(isa) && !(isa == Isa::avx2 && vnni)) {
            std::printf(";%s", isa_name(isa));
        }
    }
    const bool avxvnni = isa_supported(Isa::avx2) && !isa_supported(Isa::avx512) && has_avx_vnni();
    std::printf("%s%s", avxvnni ? ";avxvnni" : "", vnni ? ";avx512vnni" : "");
#elif EDGEKV_ARM64
    std::printf(";neon%s", has_dotprod() ? ";dotprod" : "");
#endif
}
