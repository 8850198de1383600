// Finds the kernel table that serves on this CPU. Only for translation units compiled for any CPU.
#pragma once

#include "kernels/isa.h"
#include "kernels/simd/tiles.h"

#include <cstring>
#include <string_view>

#if defined(__x86_64__)
#define EDGEKV_X86 1
#else
#define EDGEKV_X86 0
#endif
#if defined(__aarch64__)
#define EDGEKV_ARM64 1
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#else
#define EDGEKV_ARM64 0
#endif

namespace edgekv {

#if EDGEKV_X86
inline bool has_vnni() {
    static const bool vnni = __builtin_cpu_supports("avx512vnni");
    return vnni;
}
#elif EDGEKV_ARM64
// Without a way to ask the system, what the compiler was told counts; every processor of Apple's has the dot products.
inline bool has_dotprod() {
#if defined(__linux__)
    constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP
    static const bool has = (getauxval(AT_HWCAP) & kDotProducts) != 0;
    return has;
#elif defined(__APPLE__) || defined(__ARM_FEATURE_DOTPROD)
    return true;
#else
    return false;
#endif
}
#endif

// Whether this build has kernels of a name, which stands between blanks: kernels.cmake lists those of a build for one processor.
constexpr bool has_kernels([[maybe_unused]] std::string_view name) {
#ifdef EDGEKV_KERNELS
    return std::string_view(EDGEKV_KERNELS).find(name) != std::string_view::npos;
#else
    return true;
#endif
}
// Whether this build has them beside those of a variant: for one processor there is the variant alone.
constexpr bool has_plain_kernels([[maybe_unused]] std::string_view name, [[maybe_unused]] std::string_view variant) {
#ifdef EDGEKV_KERNELS
    return has_kernels(name) && !has_kernels(variant);
#else
    return true;
#endif
}
// In constants only: there a table that is not built is not asked for.
#define EDGEKV_BUILT(name, table) (edgekv::has_kernels(" " #name " ") ? &(table) : nullptr)
#define EDGEKV_BUILT_PLAIN(name, variant, table) (edgekv::has_plain_kernels(" " #name " ", " " #variant " ") ? &(table) : nullptr)

// The kernels of each instruction set, null if they are not built, and of its variants that multiply bytes in one step. Other processors
// than x86-64 and AArch64 have the portable ones.
template <class Table>
struct KernelTables {
    const Table * portable;
#if EDGEKV_X86
    const Table *avx2, *avxvnni, *avx512, *avx512vnni;
#elif EDGEKV_ARM64
    const Table *neon, *dotprod;
#endif
};

// The KernelTables of kernels that have all these variants, whose names begin with `name`.
#if EDGEKV_X86
#define EDGEKV_TABLES(name)                                                                           \
    { &name##Portable, EDGEKV_BUILT_PLAIN(avx2, avxvnni, name##Avx2), EDGEKV_BUILT(avxvnni, name##AvxVnni), \
      EDGEKV_BUILT_PLAIN(avx512, avx512vnni, name##Avx512), EDGEKV_BUILT(avx512vnni, name##Avx512Vnni) }
#elif EDGEKV_ARM64
#define EDGEKV_TABLES(name) { &name##Portable, EDGEKV_BUILT_PLAIN(neon, dotprod, name##Neon), EDGEKV_BUILT(dotprod, name##DotProd) }
#else
#define EDGEKV_TABLES(name) { &name##Portable }
#endif

template <class Table>
const Table & kernels_for([[maybe_unused]] Isa isa, const KernelTables<Table> & of) {
#if EDGEKV_X86
    switch (isa) {
        case Isa::amx:
        case Isa::avx512bf16:
        case Isa::avx512: return *(of.avx512vnni && has_vnni() ? of.avx512vnni : of.avx512);
        case Isa::avx2: return *(of.avxvnni && has_avx_vnni() ? of.avxvnni : of.avx2);
        case Isa::portable:
        case Isa::neon: break;
    }
#elif EDGEKV_ARM64
    if (isa == Isa::neon) {
        return *(of.dotprod && has_dotprod() ? of.dotprod : of.neon);
    }
#endif
    return *of.portable;
}

// The variants have names of their own; null if it is not usable on this CPU.
template <class Table>
const Table * kernels_by_name(const char * name, const KernelTables<Table> & of) {
    const struct {
        const char * name;
        bool usable;
        const Table * table;
    } all[] = {
        {"portable", true, of.portable},
#if EDGEKV_X86
        {"avx2", isa_supported(Isa::avx2), of.avx2},
        {"avxvnni", isa_supported(Isa::avx2) && has_avx_vnni(), of.avxvnni},
        {"avx512", isa_supported(Isa::avx512), of.avx512},
        {"avx512vnni", isa_supported(Isa::avx512) && has_vnni(), of.avx512vnni},
#elif EDGEKV_ARM64
        {"neon", true, of.neon},
        {"dotprod", has_dotprod(), of.dotprod},
#endif
    };
    for (const auto & one : all) {
        if (std::strcmp(name, one.name) == 0) {
            return one.usable ? one.table : nullptr;
        }
    }
    return nullptr;
}

}  // namespace edgekv
