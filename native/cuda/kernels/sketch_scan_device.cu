// Shares of the attention from the sketches. A warp works on a group of 64 cells for up to four of the KV head's query rows (all tokens, all
// query heads of the group). Other warps of the thread block take further rows over the same groups at the same time, from the cache.
// Few groups lack a sketch or are seen only in part by a token: the first blocks of the launch find these and scan the keys
// themselves, because a sketch covers all keys of its group, even those that the token does not see.
//
// The launch of a decoded step also stores its tokens' K and V and builds sketches, and no block waits for another: keys that arrive are rounded where
// they are needed, and a group that is built is scanned by the block that builds it.
#include <algorithm>

#include "cuda/kernels/sketch_build.cuh"
#include "cuda/kernels/sketch_group.cuh"
#include "cuda/kernels/store_rows.cuh"

namespace edgekv::gpu {
namespace {

constexpr int kScanRows = 4;             // most rows of a warp
constexpr int kScanWarps = 4;            // most warps of a thread block
constexpr int kScanBlocks = 5;           // thread blocks whose registers must fit an SM
#if !defined(EDGEKV_SCAN_GRID)  // tests take fewer
#    define EDGEKV_SCAN_GRID 4096
#endif
constexpr unsigned kScanGridMax = EDGEKV_SCAN_GRID;  // most thread blocks; beyond that a warp takes several groups in turn

constexpr int kOpenRows = 16;   // rows at a time
constexpr int kOpenBlocks = 4;  // thread blocks that share a head's open groups
// Every block of the launch has the shared memory of those that hold keys; four times as much must fit an SM.
constexpr size_t kOpenShared = 24 * 1024;

// The index of a head's row i among all output rows.
__device__ inline int64_t row_of(const SketchScanArgs & args, int stream, int head, int i) {
    const int64_t list = (static_cast<int64_t>(stream) * args.n_tokens + i / args.group) * args.sketches.n_head_kv + head;
    return list * args.group + i % args.group;
}

__device__ inline const float * query_of(const SketchScanArgs & args, int stream, int head, int i) {
    return args.q.at(static_cast<size_t>(stream) * args.n_tokens + i / args.group, static_cast<size_t>(head) * args.group + i % args.group);
}

__device__ inline Sight sight_of(const SketchScanArgs & args, int stream, int token, int group) {
    return args.sight[(static_cast<int64_t>(stream) * args.n_tokens + token) * args.sight_stride + group];
}

__device__ inline bool sees_in_part(const Sight & sight) { return sight.visible != 0 && ~sight.visible != 0; }

// Whether the shares of a token's rows come from the keys themselves.
__device__ inline bool by_keys(const SketchScanArgs & args, int stream, int token, int group) {
    return args.open[static_cast<int64_t>(stream) * args.sketches.n_groups + group] != 0 || sees_in_part(sight_of(args, stream, token, group));
}

// Leaves a row's shares of one group; all lanes of the warp call it.
__device__ inline void leave_row(const SketchScanArgs & args, const float (&logit)[kCellsOfLane], int stream, int head, int i, int group, int lane) {
    const int64_t row = row_of(args, stream, head, i);
    const int64_t at = row * static_cast<int64_t>(args.out.group_stride) + group;
    leave_shares(logit, sight_of(args, stream, i / args.group, group).visible, lane,
                 args.out.cells + row * static_cast<int64_t>(args.out.cell_stride) + static_cast<int64_t>(group) * kGroupCells,
                 args.out.tops + at, args.out.sums + at);
}

// The same from the products with the codes.
__device__ inline void leave_scanned(const SketchScanArgs & args, const int (&dots)[kCellsOfLane], float slope, float base, int stream, int head, int i,
                                     int group) {
    float logit[kCellsOfLane];
#pragma unroll
    for (int j = 0; j < kCellsOfLane; ++j) {
        logit[j] = fmaf(static_cast<float>(dots[j]), slope, base);
        if (args.softcap != 0.0f) {
            logit[j] = scan_softcap(logit[j], args.softcap);
        }
    }
    leave_row(args, logit, stream, head, i, group, static_cast<int>(threadIdx.x) % kWarp);
}

// ---- groups without a sketch, or seen in part ----------------------------------------------------------------------------------

// Scans the keys of open groups and of groups that a token sees in part: of every n_shares-th group of the head. A group's keys are read once for all
// tokens. All threads of the block call it.
EDGEKV_APART __device__ void scan_open(const StoreArgs & store, int first_stream, const SketchScanArgs & args, const KeyRows & key_rows, int head, int stream,
                                       int share, int n_shares) {
    auto & logits = *reinterpret_cast<float (*)[kOpenRows][kGroupCells]>(shared_memory());
    auto & tokens = *reinterpret_cast<ArrivingTokens *>(&logits + 1);
    char * const loaded = reinterpret_cast<char *>(&tokens + 1);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, n_warps = blockDim.x / kWarp;
    const int n_rows = args.n_tokens * args.group, dim = args.sketches.head_dim;
    for (int base = share; base < args.n_groups; base += kWarp * n_shares) {
        const int candidate = base + lane * n_shares;
        bool mine = false;
        for (int token = 0; token < args.n_tokens && candidate < args.n_groups; ++token) {
            mine = mine || by_keys(args, stream, token, candidate);
        }
        unsigned found = __ballot_sync(kAllLanes, mine);  // the same in all warps
        for (; found != 0; found &= found - 1) {
            const int group = base + (__ffs(static_cast<int>(found)) - 1) * n_shares;
            uint64_t seen = 0;
            for (int token = 0; token < args.n_tokens; ++token) {
                seen |= sight_of(args, stream, token, group).visible;
            }
            const uint64_t arriving = seen == 0 ? 0 : find_arriving(store, first_stream + stream, group, seen, tokens);
            const char * keys = nullptr;
            for (int first = 0; first < n_rows; first += kOpenRows) {
                const int n = min(kOpenRows, n_rows - first);
                __syncthreads();  // the previous logits are used up
                for (int part = 0; part < kGroupCells; part += key_rows.n_rows) {  // one part if there is more than one `first`
                    if (first == 0 && seen != 0) {
                        keys = load_and_round(store, args.home, key_rows, {stream, head, group, part}, seen, arriving, tokens, loaded);
                    }
                    // a thread takes a cell and a row; a warp's threads the same row
                    for (int i = threadIdx.x; i < n * key_rows.n_rows; i += blockDim.x) {
                        const int cell = i % key_rows.n_rows, r = i / key_rows.n_rows;
                        if ((seen >> (part + cell) & 1) == 0) {
                            continue;
                        }
                        const char * const key = keys + cell * key_rows.row_stride;
                        const float4 * const q = reinterpret_cast<const float4 *>(query_of(args, stream, head, first + r));
                        float4 dots = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 2
                        for (int quad = 0; quad < dim / 4; ++quad) {
                            float x[4];
                            key_quad(args.home.type, key, quad, x);
                            const float4 y = __ldg(q + quad);
                            dots.x += x[0] * y.x;
                            dots.y += x[1] * y.y;
                            dots.z += x[2] * y.z;
                            dots.w += x[3] * y.w;
                        }
                        const float dot = ((dots.x + dots.y) + (dots.z + dots.w)) * args.scale;
                        logits[r][part + cell] = args.softcap != 0.0f ? args.softcap * tanhf(dot / args.softcap) : dot;
                    }
                }
                __syncthreads();
                for (int r = warp; r < n; r += n_warps) {
                    if (!by_keys(args, stream, (first + r) / args.group, group)) {
                        continue;
                    }
                    float logit[kCellsOfLane];
#pragma unroll
                    for (int j = 0; j < kCellsOfLane; ++j) {  // those of cells that no token sees were not written
                        logit[j] = (seen >> (lane + j * kWarp) & 1) != 0 ? logits[r][lane + j * kWarp] : 0.0f;
                    }
                    leave_row(args, logit, stream, head, first + r, group, lane);
                }
            }
        }
    }
}

inline size_t open_shared_bytes(const KeyRows & rows) {
    return kOpenRows * kGroupCells * sizeof(float) + sizeof(ArrivingTokens) + key_shared_bytes(rows);
}

// ---- groups that this launch builds --------------------------------------------------------------------------------------------

inline size_t built_shared_bytes(const SketchLayout & layout, unsigned warps) {
    const int n_chunks = layout.n_dwords / 3;
    return warps * (ScanRows::bytes_of(n_chunks * 8) + n_chunks * sizeof(GroupScan<1>::Factors));
}

// Scans a group that this block has built, for all query rows; a warp takes a row.
__device__ inline void scan_built(const SketchScanArgs & args, const SketchLayout & layout, int head, int stream, int group) {
    using Scan = GroupScan<1, true>;
    const int n_chunks = layout.n_dwords / 3, lane = threadIdx.x % kWarp, n_warps = static_cast<int>(blockDim.x) / kWarp;
    const size_t of_warp = ScanRows::bytes_of(n_chunks * 8) + n_chunks * sizeof(Scan::Factors);
    const ScanRows rows = {shared_memory() + threadIdx.x / kWarp * of_warp, n_chunks * 8};
    auto * const factors = reinterpret_cast<Scan::Factors *>(rows.row(1));
    const char * const of_head = args.sketches.data + stream * args.sketches.stream_bytes + head * layout.head_bytes;
    for (int i = threadIdx.x / kWarp; i < args.n_tokens * args.group; i += n_warps) {
        const Sight sight = sight_of(args, stream, i / args.group, group);
        if (sees_in_part(sight)) {
            continue;
        }
        float slope[1] = {}, base[1] = {};
        int dots[1][kCellsOfLane] = {};
        if (sight.visible != 0) {
            prepare_row(query_of(args, stream, head, i), args.sketches.head_dim, args.scale, rows, 0, lane);
            __syncwarp();
            Scan::prepare(of_head + layout.params_offset + static_cast<size_t>(group) * layout.param_bytes, layout.padded, rows, 0, lane, factors, slope, base);
            Scan::multiply(of_head + static_cast<size_t>(group) * layout.code_bytes, n_chunks, lane, factors, dots);
        }
        leave_scanned(args, dots[0], slope[0], base[0], stream, head, i, group);
    }
}

EDGEKV_APART __device__ void build_and_scan(const StoreArgs & store, int first_stream, const SketchScanArgs & args, const SketchLayout & layout,
                                            const KeyRows & key_rows, unsigned number, unsigned n_blocks) {
    const int64_t n_units = static_cast<int64_t>(*store.build.n_stale) * store.n_head_kv;
    for (int64_t unit = number; unit < n_units; unit += n_blocks) {
        const StaleGroup stale = store.build.stale[unit / store.n_head_kv];
        const int head = static_cast<int>(unit % store.n_head_kv), stream = stale.stream - first_stream;
        build_group(store, layout, key_rows, stale, head);
        __syncthreads();
        if (stream >= 0 && stream < args.n_streams && stale.group < args.n_groups) {
            scan_built(args, layout, head, stream, stale.group);
        }
        __syncthreads();  // the next group's keys come where the query was
    }
}

// Whether a block of this launch builds a group; all lanes of the warp call it.
__device__ inline bool is_built(const StoreArgs & store, int n_stale, int stream, int group, int lane) {
    bool mine = false;
    for (int i = lane; i < n_stale; i += kWarp) {
        mine = mine || (store.build.stale[i].stream == stream && store.build.stale[i].group == group);
    }
    return n_stale != 0 && __any_sync(kAllLanes, mine) != 0;
}

// ---- all others ----------------------------------------------------------------------------------------------------------------

// The blocks of a launch, in this order: those that build, store and scan keys, as their work takes longest or begins late; then those that scan sketches,
// n_x for each stream, head and part of its rows.
struct ScanBlocks {
    unsigned n_building;
    StoreBlocks storing;
    unsigned n_open, n_x, n_y;
    int parts_per_block;
};

EDGEKV_APART __device__ void store_heads_apart(const StoreArgs & store, const StoreBlocks & blocks, unsigned number) { store_heads(store, blocks, number); }

// A block's warps are [group][part of the rows].
template <int NR>
__global__ void __launch_bounds__(kScanWarps * kWarp, kScanBlocks)
scan_groups(const __grid_constant__ StoreArgs store, const __grid_constant__ SketchScanArgs args, const __grid_constant__ SketchLayout layout,
            const __grid_constant__ KeyRows key_rows, const __grid_constant__ ScanBlocks blocks, int first_stream) {
    wait_for_launch();
    using Scan = GroupScan<NR>;
    unsigned number = blockIdx.x;
    if (number < blocks.n_building) {
        build_and_scan(store, first_stream, args, layout, key_rows, number, blocks.n_building);
        return;
    }
    number -= blocks.n_building;
    if (number < blocks.storing.n) {
        store_heads_apart(store, blocks.storing, number);
        return;
    }
    number -= blocks.storing.n;
    const bool opens = number < blocks.n_open;
    number -= opens ? 0 : blocks.n_open;
    const int n_x = opens ? kOpenBlocks : static_cast<int>(blocks.n_x), x = static_cast<int>(number) % n_x;
    const int y = static_cast<int>(number) / n_x % static_cast<int>(blocks.n_y), stream = static_cast<int>(number) / n_x / static_cast<int>(blocks.n_y);
    const int head = y % args.sketches.n_head_kv, chunk = y / args.sketches.n_head_kv;
    if (opens) {
        const int n_chunks = static_cast<int>(blocks.n_y) / args.sketches.n_head_kv;
        scan_open(store, first_stream, args, key_rows, head, stream, x * n_chunks + chunk, kOpenBlocks * n_chunks);
        return;
    }

    const int n_stale = store.build.n_stale == nullptr ? 0 : *store.build.n_stale, parts_per_block = blocks.parts_per_block;
    const int n_chunks = layout.n_dwords / 3;
    const ScanRows rows = {shared_memory(), n_chunks * 8};
    const int lane = threadIdx.x % kWarp;
    const int warp = threadIdx.x / kWarp;
    const int n_rows = args.n_tokens * args.group;
    const int first_row = chunk * parts_per_block * NR;
    for (int i = warp; i < parts_per_block * NR; i += blockDim.x / kWarp) {
        const int row = min(first_row + i, n_rows - 1);  // repeats of the last row are not stored
        prepare_row(query_of(args, stream, head, row), args.sketches.head_dim, args.scale, rows, i, lane);
    }
    __syncthreads();

    const int part = warp % parts_per_block;
    const int first = first_row + part * NR;
    if (first >= n_rows) {
        return;
    }
    auto * const factors = reinterpret_cast<typename Scan::Factors *>(rows.row(parts_per_block * NR)) + warp * n_chunks;
    const char * const of_head = args.sketches.data + stream * args.sketches.stream_bytes + head * layout.head_bytes;
    const int first_token = first / args.group, last_token = min(first + NR - 1, n_rows - 1) / args.group;
    const int groups_per_block = static_cast<int>(blockDim.x) / kWarp / parts_per_block;
    for (int group = x * groups_per_block + warp / parts_per_block; group < args.n_groups; group += n_x * groups_per_block) {
        if (args.open[static_cast<int64_t>(stream) * args.sketches.n_groups + group] != 0 || is_built(store, n_stale, first_stream + stream, group, lane)) {
            continue;
        }
        uint64_t seen = 0;  // cells that any of the tokens sees
        for (int token = first_token; token <= last_token; ++token) {
            seen |= sight_of(args, stream, token, group).visible;
        }
        float slope[NR] = {}, base[NR] = {};
        int dots[NR][kCellsOfLane] = {};
        if (seen != 0) {
            __syncwarp();  // all lanes are done with the previous group's factors
            Scan::prepare(of_head + layout.params_offset + static_cast<size_t>(group) * layout.param_bytes, layout.padded, rows, part * NR, lane, factors,
                          slope, base);
            Scan::multiply(of_head + static_cast<size_t>(group) * layout.code_bytes, n_chunks, lane, factors, dots);
        }
#pragma unroll
        for (int r = 0; r < NR; ++r) {
            if (first + r >= n_rows) {
                break;
            }
            if (sees_in_part(sight_of(args, stream, (first + r) / args.group, group))) {
                continue;
            }
            leave_scanned(args, dots[r], slope[r], base[r], stream, head, first + r, group);
        }
    }
}

using ScanKernel = void (*)(StoreArgs, SketchScanArgs, SketchLayout, KeyRows, ScanBlocks, int);
constexpr ScanKernel kScanKernels[kScanRows] = {scan_groups<1>, scan_groups<2>, scan_groups<3>, scan_groups<4>};  // by the rows of a warp

// Shared memory of a block that scans sketches.
inline size_t scan_shared_bytes(const SketchLayout & layout, int rows_per_part, int parts_per_block, unsigned warps) {
    const int n_chunks = layout.n_dwords / 3;
    return static_cast<size_t>(parts_per_block) * rows_per_part * ScanRows::bytes_of(n_chunks * 8) +
           static_cast<size_t>(warps) * n_chunks * rows_per_part * sizeof(GroupScan<1>::Factors);
}

}  // namespace

void launch_store_scan(const StoreArgs & store, const SketchScanArgs & args, int first_stream, Stream stream) {
    // splits the rows as evenly as possible
    const int n_rows = args.n_tokens * args.group;
    const int n_parts = (n_rows + kScanRows - 1) / kScanRows;
    const int rows_per_part = (n_rows + n_parts - 1) / n_parts;
    const int parts_per_block = n_parts < kScanWarps ? n_parts : kScanWarps;
    const int groups_per_block = kScanWarps / parts_per_block;
    const unsigned warps = static_cast<unsigned>(groups_per_block * parts_per_block), n_threads = warps * kWarp;

    const unsigned heads = static_cast<unsigned>(args.sketches.n_head_kv), z = static_cast<unsigned>(args.n_streams);
    const unsigned y = heads * static_cast<unsigned>((n_parts + parts_per_block - 1) / parts_per_block);
    const unsigned x = static_cast<unsigned>((args.n_groups + groups_per_block - 1) / groups_per_block);
    const unsigned x_max = y * z < kScanGridMax ? kScanGridMax / (y * z) : 1u;
    const ScanBlocks blocks = {n_builders(store), store_blocks(store, n_threads), kOpenBlocks * y * z, std::min(x, x_max), y, parts_per_block};

    const SketchLayout layout = sketch_layout(args.sketches.head_dim, args.sketches.n_groups);
    KeyRows keys = key_rows(args.home, args.sketches.head_dim, kGroupCells);
    const auto key_blocks_bytes = [&] {
        return std::max(open_shared_bytes(keys), blocks.n_building == 0 ? 0 : build_shared_bytes(keys, n_threads, store.head_dim));
    };
    if (key_blocks_bytes() > kOpenShared && n_rows <= kOpenRows) {  // else the keys would be read several times
        keys.n_rows = kGroupCells / 2;
    }
    const size_t shared = std::max({scan_shared_bytes(layout, rows_per_part, parts_per_block, warps), built_shared_bytes(layout, warps),
                                    store_shared_bytes(store, blocks.storing), key_blocks_bytes()});
    const unsigned n_blocks = blocks.n_building + blocks.storing.n + blocks.n_open + blocks.n_x * y * z;
    launch_behind(kScanKernels[rows_per_part - 1], {n_blocks}, n_threads, shared, stream, store, args, layout, keys, blocks, first_stream);
}

void launch_sketch_scan(const SketchScanArgs & args, Stream stream) {
    StoreArgs none = {};
    none.head_dim = args.sketches.head_dim;
    none.n_head_kv = args.sketches.n_head_kv;
    launch_store_scan(none, args, 0, stream);
}

}  // namespace edgekv::gpu
