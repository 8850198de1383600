// The memory layout of rows of K and V and of masks, and the limits of a problem.
#pragma once

// Marks functions that a device's kernels call too.
#if defined(__CUDACC__)
#    define EDGEKV_HOST_AND_DEVICE __host__ __device__
#else
#    define EDGEKV_HOST_AND_DEVICE
#endif

namespace edgekv {

enum class CellType : int { f16 = 0, q8_0 = 1 };  // q8_0: blocks of 32 as {f16 scale; int8 x 32}

enum class MaskType : int { none = 0, f16 = 1, f32 = 2 };

constexpr int kMaxQueryTokens = 16;
constexpr int kMaxGroup = 128;  // query heads that share a KV head
constexpr int kMaxHeadsKv = 256;
constexpr int kMaxHeadDim = 576;  // 512 if V has rows of its own

}  // namespace edgekv
