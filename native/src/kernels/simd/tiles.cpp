#include "kernels/simd/tiles.h"

#if defined(__x86_64__)
#    include <cpuid.h>
#    if defined(__linux__)
#        include <sys/syscall.h>
#        include <unistd.h>
#    endif
#endif

namespace edgekv {

#if defined(__x86_64__)
namespace {

struct Leaf {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf leaf7(unsigned sub) {
    Leaf x;
    __get_cpuid_count(7, sub, &x.eax, &x.ebx, &x.ecx, &x.edx);
    return x;
}

// Linux lends the tiles to a process that asks, since each thread's state grows by 8 KiB.
bool lent() {
#    if defined(__linux__)
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#    else
    return false;
#    endif
}

}  // namespace

bool tiles_usable() {
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
    static const bool usable = (leaf7(0).edx & (kBf16 | kTile)) == (kBf16 | kTile) && lent();
    return usable;
}

bool has_avx512_bf16() {
    static const bool has = (leaf7(1).eax & 1u << 5) != 0;
    return has;
}

bool has_avx_vnni() {
    static const bool has = (leaf7(1).eax & 1u << 4) != 0;
    return has;
}
#else
bool tiles_usable() { return false; }
bool has_avx512_bf16() { return false; }
bool has_avx_vnni() { return false; }
#endif

}  // namespace edgekv
