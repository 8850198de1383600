// Eight neighbouring values of a K or V row, as they lie in memory and as floats. A lane loads the words of several rows
// before it unpacks the first, so that many loads are under way at once. The words take four registers for either type.
#pragma once

#include "kernels/layout.h"
#include "cuda/gpu.h"

namespace edgekv::gpu {
namespace {

__device__ __forceinline__ size_t row_bytes(CellType type, int head_dim) { return static_cast<size_t>(bytes_of_row(type, head_dim)); }

// Where a lane finds values [8*i, 8*i + 8) of a row. In blocks, their codes lie 2 bytes further on, as behind the scale of the block's first eight.
template <CellType T>
__device__ __forceinline__ const char * eight_of(const char * row, int i) {
    if (T == CellType::f16) {
        return row + i*16;
    }
    return row + (i/4*block_bytes(T) + (T == CellType::q8_0 ? i%4 : i%2)*8);
}

// Blocks have 34 or 18 bytes, so codes are only aligned to 2 bytes. A lane loads the two aligned words of eight bytes that hold its ten bytes: over the
// link, whole words cross once, where loads of two and four bytes ask for the same bytes again. Each word holds bytes of the row, so it lies in memory
// that the row's owner has; what it holds of a neighbour is not used. `offset`: of the ten bytes in the words.
__device__ __forceinline__ unsigned offset_of(const char * at, unsigned further = 0) {
    return (static_cast<unsigned>(reinterpret_cast<uintptr_t>(at)) + further) & 7u;
}

template <CellType T>
__device__ __forceinline__ uint4 load_eight(const char * at) {
    if (T == CellType::f16) {
        return __ldg(reinterpret_cast<const uint4 *>(at));
    }
    const uint2 * const words = reinterpret_cast<const uint2 *>(at - offset_of(at));
    const uint2 a = __ldg(words), b = __ldg(words + 1);
    return make_uint4(a.x, a.y, b.x, b.y);
}

// Gives the values divided by a factor, and returns the factor. Zero words give zeros, or values whose factor is zero. In blocks, all lanes of the warp
// call it: the first of four has the scale.
template <CellType T>
__device__ __forceinline__ float unpack_eight(const uint4 & words, unsigned offset, int lane, float (&x)[8]) {
    if (T == CellType::f16) {
        const unsigned pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[2*i]     = __half2float(__ushort_as_half(static_cast<unsigned short>(pairs[i] & 0xffff)));
            x[2*i + 1] = __half2float(__ushort_as_half(static_cast<unsigned short>(pairs[i] >> 16)));
        }
        return 1.0f;
    }
    const bool second = (offset & 4u) != 0, upper = (offset & 2u) != 0;  // the half word where the ten bytes begin
    const unsigned first = second ? words.y : words.x, next = second ? words.z : words.y, last = second ? words.w : words.z;
    const unsigned low = __byte_perm(first, next, upper ? 0x7654 : 0x5432), high = __byte_perm(next, last, upper ? 0x7654 : 0x5432);
    const unsigned scale = __shfl_sync(0xffffffffu, upper ? first >> 16 : first & 0xffffu, lane & ~3);
    const unsigned shift = static_cast<unsigned>(lane%4/2*4);  // q4_0: of the values in their bytes
    const unsigned codes[2] = {T == CellType::q8_0 ? low ^ 0x80808080u : low >> shift & 0x0f0f0f0fu,
                               T == CellType::q8_0 ? high ^ 0x80808080u : high >> shift & 0x0f0f0f0fu};
    // a byte b under the exponent of 2^23 reads as 2^23 + b: two fast instructions; conversions run at a quarter of the rate
    constexpr float above = 8388608.0f + (T == CellType::q8_0 ? 128.0f : 8.0f);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        x[i] = __uint_as_float(__byte_perm(codes[i/4], 0x4b000000u, 0x7440u | static_cast<unsigned>(i%4))) - above;
    }
    return __half2float(__ushort_as_half(static_cast<unsigned short>(scale)));
}

}  // namespace
}  // namespace edgekv::gpu
