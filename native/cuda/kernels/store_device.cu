#include "cuda/kernels/sketch_build.cuh"
#include "cuda/kernels/store_rows.cuh"

#include <algorithm>

namespace edgekv::gpu {
namespace {

constexpr unsigned kStoreThreads = 256;

// Blocks that build sketches come first, as their work takes longest where there is any; then come those that store.
__global__ void __launch_bounds__(kStoreThreads)
store_rows(const __grid_constant__ StoreArgs args, StoreBlocks blocks, unsigned n_first, SketchLayout layout, KeyRows key_rows) {
    if (blockIdx.x >= n_first) {
        store_heads(args, blocks, blockIdx.x - n_first);
        return;
    }
    const int64_t n_units = static_cast<int64_t>(*args.build.n_stale) * args.n_head_kv;
    for (int64_t unit = blockIdx.x; unit < n_units; unit += n_first) {
        build_group(args, layout, key_rows, args.build.stale[unit / args.n_head_kv], static_cast<int>(unit % args.n_head_kv));
    }
}

}  // namespace

void launch_store(const StoreArgs & args, Stream stream) {
    const StoreBlocks blocks = store_blocks(args, kStoreThreads);
    const unsigned n_first = n_builders(args);
    size_t shared = store_shared_bytes(args, blocks);
    SketchLayout layout = {};
    KeyRows keys = {};
    if (n_first != 0) {
        layout = sketch_layout(args.head_dim, args.build.sketches.n_groups);
        keys = key_rows(args.build.home, args.head_dim, kGroupCells);
        shared = std::max(shared, build_shared_bytes(keys, kStoreThreads, args.head_dim));
    }
    if (n_first + blocks.n != 0) {
        launch(store_rows, {n_first + blocks.n}, kStoreThreads, shared, stream, args, blocks, n_first, layout, keys);
    }
}

}  // namespace edgekv::gpu
