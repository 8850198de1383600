// The memory layout of rows of K and V and of masks, and the limits of a problem.
#pragma once

#include <cstddef>

// Marks functions that a device's kernels call too.
#if defined(__CUDACC__)
#    define EDGEKV_HOST_AND_DEVICE __host__ __device__
#else
#    define EDGEKV_HOST_AND_DEVICE
#endif

namespace edgekv {

static constexpr size_t align64(size_t n) { return (n + 63) / 64 * 64; }

// f16, or blocks of 32 values as an f16 scale and codes. q8_0: 32 int8. q4_0: 16 bytes, of which byte i holds values i and i + 16,
// each plus 8, in its low and its high four bits.
enum class CellType : int { f16 = 0, q8_0 = 1, q4_0 = 2 };

constexpr int kQuantBlock = 32;
EDGEKV_HOST_AND_DEVICE static constexpr bool in_blocks(CellType type) { return type != CellType::f16; }
EDGEKV_HOST_AND_DEVICE static constexpr int block_bytes(CellType type) { return type == CellType::q4_0 ? 18 : type == CellType::q8_0 ? 34 : 64; }
EDGEKV_HOST_AND_DEVICE static constexpr int bytes_of_row(CellType type, int dim) {
    return in_blocks(type) ? dim / kQuantBlock * block_bytes(type) : 2 * dim;
}
EDGEKV_HOST_AND_DEVICE static constexpr bool holds_row(CellType type, int dim) { return !in_blocks(type) || dim % kQuantBlock == 0; }

enum class MaskType : int { none = 0, f16 = 1, f32 = 2 };

constexpr int kMaxQueryTokens = 16;
constexpr int kMaxGroup = 128;  // query heads that share a KV head
constexpr int kMaxHeadsKv = 256;
constexpr int kMaxHeadDim = 576;  // 512 if V has rows of its own

}  // namespace edgekv
