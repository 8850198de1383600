/* Plain C for any processor: no intrinsics, and no flags except the compiler's defaults. */
#include "edgekv_cpu.h"

#include <stdint.h>
#include <string.h>

extern const char * const edgekv_cpu_sets[][2]; /* cpu_needed.c */

const char * edgekv_cpu_needed(void) {
    static char names[512];
    names[0] = 0;
    for (int i = 0; edgekv_cpu_sets[i][0]; ++i) {
        if (edgekv_cpu_sets[i][1][0] != '_') {
            strcat(strcat(names, edgekv_cpu_sets[i][0]), " ");
        }
    }
    return names;
}

#if defined(__x86_64__) && defined(__GNUC__)

#    include <cpuid.h>

enum { EAX, EBX, ECX, EDX };

typedef struct {
    const char * name;
    uint32_t leaf, subleaf;
    int reg, bit;
    uint64_t state; /* bits of XCR0: register state that the kernel must save */
} feature;

#    define AVX_STATE    UINT64_C(0x06)
#    define AVX512_STATE UINT64_C(0xe6)

/* Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, CPUID; AMD's leaf for lzcnt */
static const feature kFeatures[] = {
    { "sse3",             1, 0, ECX, 0,  0 },
    { "ssse3",            1, 0, ECX, 9,  0 },
    { "sse4_1",           1, 0, ECX, 19, 0 },
    { "sse4_2",           1, 0, ECX, 20, 0 },
    { "popcnt",           1, 0, ECX, 23, 0 },
    { "movbe",            1, 0, ECX, 22, 0 },
    { "lzcnt",            0x80000001, 0, ECX, 5, 0 },
    { "bmi1",             7, 0, EBX, 3,  0 },
    { "bmi2",             7, 0, EBX, 8,  0 },
    { "gfni",             7, 0, ECX, 8,  0 },
    { "avx",              1, 0, ECX, 28, AVX_STATE },
    { "fma",              1, 0, ECX, 12, AVX_STATE },
    { "f16c",             1, 0, ECX, 29, AVX_STATE },
    { "avx2",             7, 0, EBX, 5,  AVX_STATE },
    { "avx_vnni",         7, 1, EAX, 4,  AVX_STATE },
    { "avx512f",          7, 0, EBX, 16, AVX512_STATE },
    { "avx512dq",         7, 0, EBX, 17, AVX512_STATE },
    { "avx512ifma",       7, 0, EBX, 21, AVX512_STATE },
    { "avx512cd",         7, 0, EBX, 28, AVX512_STATE },
    { "avx512bw",         7, 0, EBX, 30, AVX512_STATE },
    { "avx512vl",         7, 0, EBX, 31, AVX512_STATE },
    { "avx512vbmi",       7, 0, ECX, 1,  AVX512_STATE },
    { "avx512_vbmi2",     7, 0, ECX, 6,  AVX512_STATE },
    { "avx512_vnni",      7, 0, ECX, 11, AVX512_STATE },
    { "avx512_bitalg",    7, 0, ECX, 12, AVX512_STATE },
    { "avx512_vpopcntdq", 7, 0, ECX, 14, AVX512_STATE },
    { "avx512_fp16",      7, 0, EDX, 23, AVX512_STATE },
    { "avx512_bf16",      7, 1, EAX, 5,  AVX512_STATE },
};

static uint64_t saved_state(void) {
    uint32_t eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & (1u << 27))) {
        return 0; /* the kernel has not enabled XGETBV, so it saves no AVX registers */
    }
    __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));

    return (uint64_t) edx << 32 | eax;
}

int edgekv_cpu_has(const char * name) {
    for (size_t i = 0; i < sizeof(kFeatures)/sizeof(kFeatures[0]); ++i) {
        const feature * f = &kFeatures[i];
        uint32_t regs[4];
        if (strcmp(f->name, name) != 0) {
            continue;
        }

        return __get_cpuid_count(f->leaf, f->subleaf, &regs[EAX], &regs[EBX], &regs[ECX], &regs[EDX]) &&
               (regs[f->reg] >> f->bit & 1u) && (saved_state() & f->state) == f->state;
    }

    return -1;
}

#elif defined(__aarch64__) && defined(__linux__)

#    include <sys/auxv.h>

/* arch/arm64/include/uapi/asm/hwcap.h */
static const struct {
    const char * name;
    unsigned long type, bit;
} kFeatures[] = {
    { "asimdhp", AT_HWCAP,  10 },
    { "asimddp", AT_HWCAP,  20 },
    { "sve",     AT_HWCAP,  22 },
    { "sve2",    AT_HWCAP2, 1 },
    { "i8mm",    AT_HWCAP2, 13 },
    { "bf16",    AT_HWCAP2, 14 },
    { "sme",     AT_HWCAP2, 23 },
};

int edgekv_cpu_has(const char * name) {
    for (size_t i = 0; i < sizeof(kFeatures)/sizeof(kFeatures[0]); ++i) {
        if (strcmp(kFeatures[i].name, name) == 0) {
            return (int) (getauxval(kFeatures[i].type) >> kFeatures[i].bit & 1u);
        }
    }

    return -1;
}

#else

int edgekv_cpu_has(const char * name) {
    (void) name;
    return -1;
}

#endif
