// A program that builds for one processor run first: lists the kernels that can run on it, as kernels.cmake names them.
#include <cstdio>

#include "kernels/simd/isa_dispatch.h"

using namespace edgekv;

int main() {
    std::printf("portable");
#if EDGEKV_X86
    for (const Isa isa : {Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx}) {
        if (isa_supported(isa)) {
            std::printf(";%s", isa_name(isa));
        }
    }
    std::printf("%s%s", isa_supported(Isa::avx2) && has_avx_vnni() ? ";avxvnni" : "", isa_supported(Isa::avx512) && has_vnni() ? ";avx512vnni" : "");
#elif EDGEKV_ARM64
    std::printf(";neon%s", has_dotprod() ? ";dotprod" : "");
#endif
}
