#include "cuda/kernels/sketch_build.cuh"

#include <algorithm>

namespace edgekv::gpu {
namespace {

constexpr int kBlockValues = 1024;  // values of a storing block at most: whole heads of one token
constexpr unsigned kMostBuilders = 2048;

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

// How a launch's blocks are shared out: those that build sketches come first, as their work takes longest where there is any; then come blocks for
// the parts of a token's heads, for tokens, for K and for V.
struct StoreBlocks {
    unsigned n_builders, n_parts;
    int heads_of_part;
};

struct alignas(16) Staged {
    char bytes[kBlockValues * sizeof(__half)];
};

// Converts some heads of one token, of K or of V.
__device__ inline void store_heads(const StoreArgs & args, int token, int first, int n_heads, bool is_v) {
    const StoreRows & rows = is_v ? args.v : args.k;
    const int row_bytes = bytes_of_row(rows.type, args.head_dim), per_row = (args.head_dim + kWarp - 1) / kWarp;
    EDGEKV_SHARED(Staged, shared);
    char * const staged = shared.bytes;
    for (int i = threadIdx.x / kWarp; i < n_heads * per_row; i += kStoreThreads / kWarp) {
        const int head = i / per_row, d = i % per_row * kWarp + static_cast<int>(threadIdx.x) % kWarp;
        const float x = d < args.head_dim ? rows.src.at(static_cast<size_t>(token), static_cast<size_t>(first + head))[d] : 0.0f;
        round_value(rows.type, x, d, args.head_dim, staged + head * row_bytes);
    }
    __syncthreads();

    const int64_t row = rows.rows[token], stream = row / args.cells_per_stream, cell = row % args.cells_per_stream;
    const CellRows second = {rows.second, rows.home.stride_cell, rows.home.stride_head};
    copy_heads(rows.home, row, first, staged, n_heads, row_bytes);
    if (second.data != nullptr) {
        copy_heads(second, row, first, staged, n_heads, row_bytes);
    }
    for (int h = 0; h < n_heads && args.arena.data != nullptr; ++h) {
        if (char * const place = args.arena.row(stream, cell, first + h, is_v ? args.arena.v_offset : 0, row_bytes)) {
            copy_out(place, staged + h * row_bytes, row_bytes);
        }
    }
}

__global__ void __launch_bounds__(kStoreThreads)
store_rows(const __grid_constant__ StoreArgs args, StoreBlocks blocks, SketchLayout layout, KeyRows key_rows) {
    if (blockIdx.x < blocks.n_builders) {
        build_groups(args, layout, key_rows, blockIdx.x, blocks.n_builders);
        return;
    }
    const unsigned i = blockIdx.x - blocks.n_builders, of_tokens = i / blocks.n_parts;
    const int first = static_cast<int>(i % blocks.n_parts) * blocks.heads_of_part;
    store_heads(args, static_cast<int>(of_tokens % static_cast<unsigned>(args.n_tokens)), first, min(blocks.heads_of_part, args.n_head_kv - first),
                of_tokens >= static_cast<unsigned>(args.n_tokens));
}

}  // namespace

void launch_store(const StoreArgs & args, Stream stream) {
    const int per_block = kBlockValues / args.head_dim;
    StoreBlocks blocks = {0, static_cast<unsigned>((args.n_head_kv + per_block - 1) / per_block), per_block};
    size_t shared = 0;  // of the builders
    SketchLayout layout = {};
    KeyRows keys = {};
    if (args.build.n_stale != nullptr) {
        const int64_t n_units = static_cast<int64_t>(args.build.n_expected) * args.n_head_kv;
        blocks.n_builders = static_cast<unsigned>(std::clamp<int64_t>(n_units, 1, kMostBuilders));
        layout = sketch_layout(args.head_dim, args.build.sketches.n_groups);
        keys = key_rows(args.build.home, args.head_dim, kGroupCells);
        shared = key_shared_bytes(keys);
    }
    const unsigned n_blocks = blocks.n_builders + 2 * blocks.n_parts * static_cast<unsigned>(args.n_tokens);
    if (n_blocks != 0) {
        launch(store_rows, {n_blocks}, kStoreThreads, shared, stream, args, blocks, layout, keys);
    }
}

}  // namespace edgekv::gpu
