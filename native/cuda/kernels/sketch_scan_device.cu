// Shares of the attention from the sketches. A warp works on a group of 64 cells for up to four of the KV head's query rows (all tokens, all
// query heads of the group). Other warps of the thread block take further rows over the same groups at the same time, from the cache.
// Few groups lack a sketch or are seen only in part by a token: the first blocks of the launch find these and scan the keys
// themselves, because a sketch covers all keys of its group, even those that the token does not see.
#include <algorithm>

#include "cuda/kernels/sketch_group.cuh"
#include "cuda/kernels/sketch_keys.cuh"

namespace edgekv::gpu {
namespace {

constexpr int kScanRows = 4;             // most rows of a warp
constexpr int kScanWarps = 4;            // most warps of a thread block
constexpr int kScanBlocks = 4;           // thread blocks whose registers must fit an SM
#if !defined(EDGEKV_SCAN_GRID)  // tests take fewer
#    define EDGEKV_SCAN_GRID 4096
#endif
constexpr unsigned kScanGridMax = EDGEKV_SCAN_GRID;  // most thread blocks; beyond that a warp takes several groups in turn

constexpr int kOpenRows = 16;   // rows at a time
constexpr int kOpenBlocks = 4;  // the first thread blocks of a launch's x: they share a head's open groups
// Every block of the launch has the shared memory of those that hold keys; kScanBlocks times as much must fit an SM.
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

// Scans the keys of open groups and of groups that a token sees in part: of every n_shares-th group of the head. A group's keys are read once for all
// tokens. All threads of the block call it.
EDGEKV_APART __device__ void scan_open(const SketchScanArgs & args, const KeyRows & key_rows, int head, int stream, int share, int n_shares) {
    auto & logits = *reinterpret_cast<float (*)[kOpenRows][kGroupCells]>(shared_memory());
    char * const loaded = shared_memory() + sizeof(logits);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, n_warps = blockDim.x / kWarp;
    const int n_rows = args.n_tokens * args.group, dim = args.sketches.head_dim;
    for (int base = share; base < args.n_groups; base += kWarp * n_shares) {
        const int candidate = base + lane * n_shares;
        bool mine = false;
        for (int token = 0; token < args.n_tokens && candidate < args.n_groups; ++token) {
            mine = mine || by_keys(args, stream, token, candidate);
        }
        unsigned found = __ballot_sync(kFullWarp, mine);  // the same in all warps
        for (; found != 0; found &= found - 1) {
            const int group = base + (__ffs(static_cast<int>(found)) - 1) * n_shares;
            uint64_t seen = 0;
            for (int token = 0; token < args.n_tokens; ++token) {
                seen |= sight_of(args, stream, token, group).visible;
            }
            const char * keys = nullptr;
            for (int first = 0; first < n_rows; first += kOpenRows) {
                const int n = min(kOpenRows, n_rows - first);
                __syncthreads();  // the previous logits are used up
                for (int part = 0; part < kGroupCells; part += key_rows.n_rows) {  // one part if there is more than one `first`
                    if (first == 0 && seen != 0) {
                        keys = load_keys(args.home, key_rows, stream, head, group * kGroupCells + part, seen >> part, loaded);
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
                    const int64_t row = row_of(args, stream, head, first + r);
                    const int64_t at = row * static_cast<int64_t>(args.out.group_stride) + group;
                    leave_shares(logit, sight_of(args, stream, (first + r) / args.group, group).visible, lane,
                                 args.out.cells + row * static_cast<int64_t>(args.out.cell_stride) + static_cast<int64_t>(group) * kGroupCells,
                                 args.out.tops + at, args.out.sums + at);
                }
            }
        }
    }
}

inline size_t open_shared_bytes(const KeyRows & rows) { return kOpenRows * kGroupCells * sizeof(float) + key_shared_bytes(rows); }

// Thread block x takes groups, behind the blocks that scan keys; y a head and some of its rows, z a stream. Its warps are [group][part of the rows].
template <int NR>
__global__ void __launch_bounds__(kScanWarps * kWarp, kScanBlocks)
scan_groups(const __grid_constant__ SketchScanArgs args, SketchLayout layout, const __grid_constant__ KeyRows key_rows, int parts_per_block) {
    using Scan = GroupScan<NR>;
    const int head = static_cast<int>(blockIdx.y) % args.sketches.n_head_kv;
    const int chunk = static_cast<int>(blockIdx.y) / args.sketches.n_head_kv;
    const int stream = blockIdx.z;
    if (blockIdx.x < kOpenBlocks) {
        const int n_chunks = static_cast<int>(gridDim.y) / args.sketches.n_head_kv;
        scan_open(args, key_rows, head, stream, static_cast<int>(blockIdx.x) * n_chunks + chunk, kOpenBlocks * n_chunks);
        return;
    }
    const int x = static_cast<int>(blockIdx.x) - kOpenBlocks, n_x = static_cast<int>(gridDim.x) - kOpenBlocks;

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
        if (args.open[static_cast<int64_t>(stream) * args.sketches.n_groups + group] != 0) {
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
            float logit[kCellsOfLane];
#pragma unroll
            for (int j = 0; j < kCellsOfLane; ++j) {
                logit[j] = fmaf(static_cast<float>(dots[r][j]), slope[r], base[r]);
                if (args.softcap != 0.0f) {
                    logit[j] = scan_softcap(logit[j], args.softcap);
                }
            }
            const int64_t row = row_of(args, stream, head, first + r);
            const int64_t at = row * static_cast<int64_t>(args.out.group_stride) + group;
            leave_shares(logit, sight_of(args, stream, (first + r) / args.group, group).visible, lane,
                         args.out.cells + row * static_cast<int64_t>(args.out.cell_stride) + static_cast<int64_t>(group) * kGroupCells,
                         args.out.tops + at, args.out.sums + at);
        }
    }
}

using ScanKernel = void (*)(SketchScanArgs, SketchLayout, KeyRows, int);
constexpr ScanKernel kScanKernels[kScanRows] = {scan_groups<1>, scan_groups<2>, scan_groups<3>, scan_groups<4>};  // by the rows of a warp

// Shared memory of a block that scans sketches.
inline size_t scan_shared_bytes(const SketchLayout & layout, int rows_per_part, int parts_per_block, unsigned warps) {
    const int n_chunks = layout.n_dwords / 3;
    return static_cast<size_t>(parts_per_block) * rows_per_part * ScanRows::bytes_of(n_chunks * 8) +
           static_cast<size_t>(warps) * n_chunks * rows_per_part * sizeof(GroupScan<1>::Factors);
}

}  // namespace

void launch_sketch_scan(const SketchScanArgs & args, Stream stream) {
    // splits the rows as evenly as possible
    const int n_rows = args.n_tokens * args.group;
    const int n_parts = (n_rows + kScanRows - 1) / kScanRows;
    const int rows_per_part = (n_rows + n_parts - 1) / n_parts;
    const int parts_per_block = n_parts < kScanWarps ? n_parts : kScanWarps;
    const int groups_per_block = kScanWarps / parts_per_block;

    const unsigned heads = static_cast<unsigned>(args.sketches.n_head_kv), z = static_cast<unsigned>(args.n_streams);
    const unsigned y = heads * static_cast<unsigned>((n_parts + parts_per_block - 1) / parts_per_block);
    const unsigned x = static_cast<unsigned>((args.n_groups + groups_per_block - 1) / groups_per_block);
    const unsigned x_max = y * z < kScanGridMax ? kScanGridMax / (y * z) : 1u;
    if (x == 0) {
        return;
    }

    const SketchLayout layout = sketch_layout(args.sketches.head_dim, args.sketches.n_groups);
    const unsigned warps = static_cast<unsigned>(groups_per_block * parts_per_block);
    const size_t shared = scan_shared_bytes(layout, rows_per_part, parts_per_block, warps);
    KeyRows keys = key_rows(args.home, args.sketches.head_dim, kGroupCells);
    if (open_shared_bytes(keys) > kOpenShared && n_rows <= kOpenRows) {  // else the keys would be read several times
        keys.n_rows = kGroupCells / 2;
    }
    launch(kScanKernels[rows_per_part - 1], {kOpenBlocks + (x < x_max ? x : x_max), y, z}, warps * kWarp, std::max(shared, open_shared_bytes(keys)), stream, args,
           layout, keys, parts_per_block);
}

}  // namespace edgekv::gpu
