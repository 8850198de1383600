// Finds the kernel table that serves on this CPU. Only for translation units compiled for any CPU.
#pragma once

#include "kernels/isa.h"

#include <cstring>

#if defined(__x86_64__) || defined(_M_X64)
#define EDGEKV_X86 1
#else
#define EDGEKV_X86 0
#endif

namespace edgekv {

#if EDGEKV_X86
inline bool has_vnni() {
    static const bool vnni = __builtin_cpu_supports("avx512vnni");
    return vnni;
}

template <class Table>
const Table & kernels_for(Isa isa, const Table & portable, const Table & avx2, const Table & avx512, const Table & avx512vnni) {
    switch (isa) {
        case Isa::amx:
        case Isa::avx512bf16:
        case Isa::avx512: return has_vnni() ? avx512vnni : avx512;
        case Isa::avx2: return avx2;
        case Isa::portable: break;
    }
    return portable;
}

// "avx512vnni" apart from "avx512"; null if it is not usable on this CPU.
template <class Table>
const Table * kernels_by_name(const char * name, const Table & portable, const Table & avx2, const Table & avx512,
                              const Table & avx512vnni) {
    if (std::strcmp(name, "portable") == 0) {
        return &portable;
    }
    if (std::strcmp(name, "avx2") == 0 && isa_supported(Isa::avx2)) {
        return &avx2;
    }
    if (std::strcmp(name, "avx512") == 0 && isa_supported(Isa::avx512)) {
        return &avx512;
    }
    if (std::strcmp(name, "avx512vnni") == 0 && isa_supported(Isa::avx512) && has_vnni()) {
        return &avx512vnni;
    }
    return nullptr;
}
#endif

}  // namespace edgekv
