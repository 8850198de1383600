// Estimates strips from their sketches. A lane works on a strip and a warp on two neighbouring blocks of 16, so that every load
// of the warp is two whole vectors. A warp has up to four rows of the head's queries (those of a group, of all tokens); where
// there are more, other warps of the thread block take them over the same blocks at the same time, out of the cache.
#include "sketch_strips.cuh"

namespace edgekv::gpu {
namespace {

constexpr int kScanRows = 4;             // of a warp, at most
constexpr int kScanWarps = 4;            // of a thread block, at most
constexpr int kScanBlocks = 4;           // thread blocks that the registers of an SM have to suffice for
constexpr unsigned kScanGridMax = 4096;  // thread blocks; beyond that a warp takes several pairs of blocks in turn

// Thread block: x takes pairs of blocks, y a head and some of its rows, z a stream. Its warps are [pair][part of the rows].
template <int Bits, int D, int NR>
__global__ void __launch_bounds__(kScanWarps * kWarp, kScanBlocks) scan_strips(SketchScanArgs args, SketchLayout layout,
                                                                               int parts_per_block) {
    const SketchArray & sketches = args.sketches;
    const int head = static_cast<int>(blockIdx.y) % sketches.n_head_kv;
    const int chunk = static_cast<int>(blockIdx.y) / sketches.n_head_kv;
    const size_t stream = blockIdx.z;
    if (args.reselect > 1 && !scans_now(*args.state, args.first_turn + static_cast<uint32_t>(head), args.reselect)) {
        return;
    }

    char * const shared = shared_memory();
    const int lane = threadIdx.x % kWarp;
    const int warp = threadIdx.x / kWarp;
    const int n_rows = args.n_tokens * args.group;
    const int first_row = chunk * parts_per_block * NR;
    for (int i = warp; i < parts_per_block * NR; i += blockDim.x / kWarp) {
        const int row = min(first_row + i, n_rows - 1);  // past the last row it is repeated, and not stored
        const int token = row / args.group, g = row % args.group;
        const char * q = args.q + (stream * args.n_tokens + token) * args.q_stride_token +
                         static_cast<size_t>(head * args.group + g) * args.q_stride_head;
        prepare_row<Bits == 0, D>(reinterpret_cast<const float *>(q), args.scale, shared + i * ScanRows<D>::kBytes, lane);
    }
    __syncthreads();

    const int part = warp % parts_per_block;
    const int first = first_row + part * NR;
    if (first >= n_rows) {
        return;
    }
    const ScanRows<D> rows{shared + part * NR * ScanRows<D>::kBytes};
    const char * const head_blocks = sketches.data + stream * sketches.stream_bytes +
                                     static_cast<size_t>(head) * layout.n_blocks * layout.block_bytes + lane % 16 * 4;
    const int pairs_per_block = static_cast<int>(blockDim.x) / kWarp / parts_per_block;
    const int n_pairs = (args.n_blocks + 1) / 2;
    for (int pair = blockIdx.x * pairs_per_block + warp / parts_per_block; pair < n_pairs; pair += gridDim.x * pairs_per_block) {
        const int block = 2 * pair + lane / 16;
        const int strip = block * kSketchBlockStrips + lane % 16;
        float estimate[NR];
        StripScan<Bits, D, NR>::run(head_blocks + static_cast<size_t>(min(block, layout.n_blocks - 1)) * layout.block_bytes, rows,
                                    args.softcap, estimate);
        if (block < args.n_blocks) {
#pragma unroll
            for (int r = 0; r < NR; ++r) {
                const int row = first + r, token = row / args.group, g = row % args.group;
                if (row < n_rows) {
                    const size_t list = (stream * args.n_tokens + token) * sketches.n_head_kv + head;
                    args.estimates[(list * args.group + g) * args.stride + strip] =
                        strip < sketches.n_strips ? estimate[r] : -INFINITY;
                }
            }
        }
    }
}

using ScanKernel = void (*)(SketchScanArgs, SketchLayout, int);

template <int D, int NR>
ScanKernel kernel_of_kind(SketchKind kind) {
    switch (kind) {
        case SketchKind::b1: return scan_strips<1, D, NR>;
        case SketchKind::b2: return scan_strips<2, D, NR>;
        default: return scan_strips<0, D, NR>;
    }
}

template <int NR>
ScanKernel scan_kernel(const SketchArray & sketches) {
    switch (sketches.head_dim) {
        case 64: return kernel_of_kind<64, NR>(sketches.kind);
        case 80: return kernel_of_kind<80, NR>(sketches.kind);
        case 96: return kernel_of_kind<96, NR>(sketches.kind);
        case 128: return kernel_of_kind<128, NR>(sketches.kind);
        default: return kernel_of_kind<256, NR>(sketches.kind);
    }
}

}  // namespace

void launch_sketch_scan(const SketchScanArgs & given, Stream stream) {
    SketchScanArgs args = given;
    if (args.n_tokens != 1 || args.n_streams != 1) {
        args.reselect = 1;
    }
    // parts of the rows, as even as it gets
    const int n_rows = args.n_tokens * args.group;
    const int n_parts = (n_rows + kScanRows - 1) / kScanRows;
    const int rows_per_part = (n_rows + n_parts - 1) / n_parts;
    const int parts_per_block = n_parts < kScanWarps ? n_parts : kScanWarps;
    const int pairs_per_block = kScanWarps / parts_per_block;
    const int n_pairs = (args.n_blocks + 1) / 2;

    const unsigned y = static_cast<unsigned>(args.sketches.n_head_kv * ((n_parts + parts_per_block - 1) / parts_per_block));
    const unsigned z = static_cast<unsigned>(args.n_streams);
    const unsigned x = static_cast<unsigned>((n_pairs + pairs_per_block - 1) / pairs_per_block);
    const unsigned x_max = y * z < kScanGridMax ? kScanGridMax / (y * z) : 1u;
    if (x == 0) {
        return;
    }

    constexpr ScanKernel (*by_rows[])(const SketchArray &) = {scan_kernel<1>, scan_kernel<2>, scan_kernel<3>, scan_kernel<4>};
    const ScanKernel kernel = by_rows[rows_per_part - 1](args.sketches);
    const size_t shared = static_cast<size_t>(parts_per_block) * rows_per_part *
                          (sizeof(QueryHeader) + static_cast<size_t>(args.sketches.head_dim) / 4 * (sizeof(QueryQuad) + 4));
    const unsigned threads = static_cast<unsigned>(pairs_per_block * parts_per_block) * kWarp;
    launch(kernel, {x < x_max ? x : x_max, y, z}, threads, shared, stream, args, device_layout(args.sketches), parts_per_block);
}

}  // namespace edgekv::gpu
