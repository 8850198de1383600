// Finds the kernel table that serves on this CPU. Only for translation units compiled for any CPU.
#pragma once

#include "kernels/isa.h"
#include "kernels/simd/tiles.h"

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
#endif

// The kernels of each instruction set, and of its variants that multiply bytes in one step. Other processors than x86 have the portable ones.
template <class Table>
struct KernelTables {
    const Table & portable;
#if EDGEKV_X86
    const Table &avx2, &avxvnni, &avx512, &avx512vnni;
#endif
};

template <class Table>
const Table & kernels_for([[maybe_unused]] Isa isa, const KernelTables<Table> & of) {
#if EDGEKV_X86
    switch (isa) {
        case Isa::amx:
        case Isa::avx512bf16:
        case Isa::avx512: return has_vnni() ? of.avx512vnni : of.avx512;
        case Isa::avx2: return has_avx_vnni() ? of.avxvnni : of.avx2;
        case Isa::portable: break;
    }
#endif
    return of.portable;
}

// The variants have names of their own; null if it is not usable on this CPU.
template <class Table>
const Table * kernels_by_name(const char * name, const KernelTables<Table> & of) {
    if (std::strcmp(name, "portable") == 0) {
        return &of.portable;
    }
#if EDGEKV_X86
    if (std::strcmp(name, "avx2") == 0 && isa_supported(Isa::avx2)) {
        return &of.avx2;
    }
    if (std::strcmp(name, "avxvnni") == 0 && isa_supported(Isa::avx2) && has_avx_vnni()) {
        return &of.avxvnni;
    }
    if (std::strcmp(name, "avx512") == 0 && isa_supported(Isa::avx512)) {
        return &of.avx512;
    }
    if (std::strcmp(name, "avx512vnni") == 0 && isa_supported(Isa::avx512) && has_vnni()) {
        return &of.avx512vnni;
    }
#endif
    return nullptr;
}

}  // namespace edgekv
