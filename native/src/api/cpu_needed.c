/* The instruction sets that the compiler may use, each with its macro's value: this file is compiled with the flags of ggml's CPU backend, and a macro
   that is not defined stays its own name. It holds only data, which any processor can read. It leaves out sets that neither ggml nor a compiler
   uses by itself (cryptography, for example), and the tile unit (AMX): ggml asks the kernel for it at run time, and works without it. */
#define TEXT(x) #x
#define SET(name, macro) { name, TEXT(macro) }

const char * const edgekv_cpu_sets[][2] = {
    SET("sse3",             __SSE3__),
    SET("ssse3",            __SSSE3__),
    SET("sse4_1",           __SSE4_1__),
    SET("sse4_2",           __SSE4_2__),
    SET("popcnt",           __POPCNT__),
    SET("movbe",            __MOVBE__),
    SET("lzcnt",            __LZCNT__),
    SET("bmi1",             __BMI__),
    SET("bmi2",             __BMI2__),
    SET("gfni",             __GFNI__),
    SET("avx",              __AVX__),
    SET("fma",              __FMA__),
    SET("f16c",             __F16C__),
    SET("avx2",             __AVX2__),
    SET("avx_vnni",         __AVXVNNI__),
    SET("avx512f",          __AVX512F__),
    SET("avx512dq",         __AVX512DQ__),
    SET("avx512ifma",       __AVX512IFMA__),
    SET("avx512cd",         __AVX512CD__),
    SET("avx512bw",         __AVX512BW__),
    SET("avx512vl",         __AVX512VL__),
    SET("avx512vbmi",       __AVX512VBMI__),
    SET("avx512_vbmi2",     __AVX512VBMI2__),
    SET("avx512_vnni",      __AVX512VNNI__),
    SET("avx512_bitalg",    __AVX512BITALG__),
    SET("avx512_vpopcntdq", __AVX512VPOPCNTDQ__),
    SET("avx512_fp16",      __AVX512FP16__),
    SET("avx512_bf16",      __AVX512BF16__),
    SET("asimdhp",          __ARM_FEATURE_FP16_VECTOR_ARITHMETIC),
    SET("asimddp",          __ARM_FEATURE_DOTPROD),
    SET("sve",              __ARM_FEATURE_SVE),
    SET("sve2",             __ARM_FEATURE_SVE2),
    SET("i8mm",             __ARM_FEATURE_MATMUL_INT8),
    SET("bf16",             __ARM_FEATURE_BF16),
    SET("sme",              __ARM_FEATURE_SME),
    { 0, 0 },
};
