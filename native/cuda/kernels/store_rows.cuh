// Blocks that store K and V of tokens. Bound by the link: a row of each head, once.
#pragma once

#include "cuda/kernels/sketch_keys.cuh"
#include "cuda/kernels/store_device.h"
#include "cuda/kernels/store_round.cuh"

namespace edgekv::gpu {
namespace {

template <class T>
__device__ inline void copy_as(char * dst, const char * src, int n_bytes) {
    for (int i = threadIdx.x; i < n_bytes / static_cast<int>(sizeof(T)); i += blockDim.x) {
        reinterpret_cast<T *>(dst)[i] = reinterpret_cast<const T *>(src)[i];
    }
}

// All threads copy, in the widest words that the place allows: over the link a few wide writes are much faster.
__device__ inline void copy_out(char * dst, const char * src, int n_bytes) {
    const uintptr_t places = reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src) |
                             static_cast<uintptr_t>(n_bytes);
    if (places % 16 == 0) {
        copy_as<Bytes16>(dst, src, n_bytes);
    } else if (places % 8 == 0) {
        copy_as<Bytes8>(dst, src, n_bytes);
    } else if (places % 4 == 0) {
        copy_as<uint32_t>(dst, src, n_bytes);
    } else {
        copy_as<uint16_t>(dst, src, n_bytes);
    }
}

// Heads of a cell, from `first` on.
__device__ inline void copy_heads(const CellRows & to, int64_t cell, int first, const char * staged, int n_heads, int row_bytes) {
    char * const dst = to.at(static_cast<size_t>(cell), static_cast<size_t>(first));
    if (to.stride_head == static_cast<size_t>(row_bytes)) {
        copy_out(dst, staged, n_heads * row_bytes);
        return;
    }
    for (int h = 0; h < n_heads; ++h) {
        copy_out(dst + h * to.stride_head, staged + h * row_bytes, row_bytes);
    }
}

// The blocks that store: for each token, of K and of V, some for the parts of its heads.
struct StoreBlocks {
    unsigned n, n_parts;
    int heads_of_part;
};

constexpr int kStoredValues = 4;  // of a thread

inline StoreBlocks store_blocks(const StoreArgs & args, unsigned n_threads) {
    const int values = kStoredValues * static_cast<int>(n_threads), heads = values > args.head_dim ? values / args.head_dim : 1;
    const unsigned n_parts = static_cast<unsigned>((args.n_head_kv + heads - 1) / heads);
    return {2 * n_parts * static_cast<unsigned>(args.n_tokens), n_parts, heads};
}

// Shared memory of such a block.
inline size_t store_shared_bytes(const StoreArgs & args, const StoreBlocks & blocks) {
    const int k = bytes_of_row(args.k.type, args.head_dim), v = bytes_of_row(args.v.type, args.head_dim);
    return blocks.n == 0 ? 0 : static_cast<size_t>(blocks.heads_of_part) * static_cast<size_t>(k > v ? k : v);
}

// Converts some heads of one token, of K or of V: the work of block `number`.
__device__ inline void store_heads(const StoreArgs & args, const StoreBlocks & blocks, unsigned number) {
    const unsigned of_tokens = number / blocks.n_parts;
    const int token = static_cast<int>(of_tokens % static_cast<unsigned>(args.n_tokens));
    const int first = static_cast<int>(number % blocks.n_parts) * blocks.heads_of_part;
    const int n_heads = min(blocks.heads_of_part, args.n_head_kv - first);
    const bool is_v = of_tokens >= static_cast<unsigned>(args.n_tokens);

    const StoreRows & rows = is_v ? args.v : args.k;
    const int row_bytes = bytes_of_row(rows.type, args.head_dim), per_row = (args.head_dim + kWarp - 1) / kWarp;
    char * const staged = shared_memory();
    for (int i = threadIdx.x / kWarp; i < n_heads * per_row; i += blockDim.x / kWarp) {
        const int head = i / per_row, d = i % per_row * kWarp + static_cast<int>(threadIdx.x) % kWarp;
        const float x = d < args.head_dim ? rows.src.at(static_cast<size_t>(token), static_cast<size_t>(first + head))[d] : 0.0f;
        round_value(rows.type, x, d, args.head_dim, staged + head * row_bytes);
    }
    __syncthreads();

    const int64_t row = rows.rows[token], stream = row / args.cells_per_stream, cell = row % args.cells_per_stream;
    copy_heads(rows.home, row, first, staged, n_heads, row_bytes);
    const int begin = max(first, rows.second.first_head), end = min(first + n_heads, rows.second.first_head + rows.second.n_heads);
    if (rows.second.of.data != nullptr && begin < end) {
        copy_heads(rows.second.of, row, begin - rows.second.first_head, staged + (begin - first) * row_bytes, end - begin, row_bytes);
    }
    for (int h = 0; h < n_heads && args.arena.data != nullptr; ++h) {
        if (char * const place = args.arena.row(stream, cell, first + h, is_v ? args.arena.v_offset : 0, row_bytes)) {
            copy_out(place, staged + h * row_bytes, row_bytes);
        }
    }
}

}  // namespace
}  // namespace edgekv::gpu
