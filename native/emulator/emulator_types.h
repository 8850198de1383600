// CUDA's words and vector types for the host compiler. Part of emulator.h.
#pragma once

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Vectors have CUDA's alignment, so that tests find misaligned accesses (they are built with -fsanitize=alignment).
#define EDGEKV_VECTOR_TYPES(name, type)                                                                          \
    struct alignas(8) name##2 {                                                                                  \
        type x, y;                                                                                               \
    };                                                                                                           \
    struct alignas(16) name##4 {                                                                                 \
        type x, y, z, w;                                                                                         \
    };                                                                                                           \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                             \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

EDGEKV_VECTOR_TYPES(int, int)
EDGEKV_VECTOR_TYPES(uint, unsigned)
EDGEKV_VECTOR_TYPES(float, float)
#undef EDGEKV_VECTOR_TYPES
