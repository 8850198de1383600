// Eight neighbouring values of a K or V row, as they lie in memory and as floats. A lane loads the words of several rows
// before it unpacks the first, so that many loads are under way at once. The words take four registers for either type.
#pragma once

#include "kernels/layout.h"
#include "cuda/gpu.h"

namespace edgekv::gpu {
namespace {

__device__ __forceinline__ size_t row_bytes(CellType type, int head_dim) { return static_cast<size_t>(bytes_of_row(type, head_dim)); }

// Where a lane finds eight values in the first of several rows; the other rows follow at a stride.
struct Eight {
    const char * at;
    int before;      // in blocks: bytes from the block's scale to the values
    unsigned shift;  // q4_0: of the values in their bytes
};

// Values [8*i, 8*i + 8) of a row.
template <CellType T>
__device__ __forceinline__ Eight eight_of(const char * row, int i) {
    if (T == CellType::f16) {
        return {row + i*16, 0, 0};
    }
    const int before = 2 + (T == CellType::q8_0 ? i%4 : i%2)*8;
    return {row + (i/4*block_bytes(T) + before), before, T == CellType::q8_0 ? 0u : i%4/2*4u};
}

// Blocks have 34 or 18 bytes, so codes are only aligned to 2 bytes. Eight codes of q4_0 are halves of eight bytes. Four of the eight always lie in one aligned word: the
// first half, or the middle if `at` is odd in units of 2 bytes. Two more loads fetch the other two pairs. So all reads stay
// within the row, and all lanes take the same path.
__device__ __forceinline__ bool straddles(const char * at, unsigned offset) {
    return ((static_cast<unsigned>(reinterpret_cast<uintptr_t>(at)) + offset) & 2u) != 0;
}

template <CellType T>
__device__ __forceinline__ uint4 load_eight(const Eight & eight) {
    const char * at = eight.at;
    if (T == CellType::f16) {
        return __ldg(reinterpret_cast<const uint4 *>(at));
    }
    const bool odd = straddles(at, 0);
    uint4 words;
    words.x = __ldg(reinterpret_cast<const unsigned *>(at + (odd ? 2 : 0)));
    words.y = __ldg(reinterpret_cast<const unsigned short *>(at + (odd ? 0 : 4)));
    words.z = __ldg(reinterpret_cast<const unsigned short *>(at + 6));
    words.w = __ldg(reinterpret_cast<const unsigned short *>(at - eight.before)) | eight.shift << 16;
    return words;
}

// Gives the values divided by a factor, and returns the factor. `odd`: straddles() at their address. Zero words give zeros.
template <CellType T>
__device__ __forceinline__ float unpack_eight(const uint4 & words, bool odd, float (&x)[8]) {
    if (T == CellType::f16) {
        const unsigned pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[2*i]     = __half2float(__ushort_as_half(static_cast<unsigned short>(pairs[i] & 0xffff)));
            x[2*i + 1] = __half2float(__ushort_as_half(static_cast<unsigned short>(pairs[i] >> 16)));
        }
        return 1.0f;
    }
    // a byte b under the exponent of 2^23 reads as 2^23 + b: two fast instructions; conversions run at a quarter of the rate
    const unsigned low = odd ? __byte_perm(words.y, words.x, 0x5410) : words.x;
    const unsigned high = __byte_perm(odd ? words.x : words.y, words.z, odd ? 0x5432 : 0x5410);
    const unsigned shift = words.w >> 16;
    const unsigned codes[2] = {T == CellType::q8_0 ? low ^ 0x80808080u : low >> shift & 0x0f0f0f0fu,
                               T == CellType::q8_0 ? high ^ 0x80808080u : high >> shift & 0x0f0f0f0fu};
    constexpr float offset = 8388608.0f + (T == CellType::q8_0 ? 128.0f : 8.0f);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        x[i] = __uint_as_float(__byte_perm(codes[i/4], 0x4b000000u, 0x7440u | static_cast<unsigned>(i%4))) - offset;
    }
    return __half2float(__ushort_as_half(static_cast<unsigned short>(words.w & 0xffffu)));
}

}  // namespace
}  // namespace edgekv::gpu
