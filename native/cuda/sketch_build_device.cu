// Rebuilds stale strips: a warp for a strip of a head, a lane for four channels (eight with head_dim 256), whose values of the 16
// keys lie in shared memory as they came from home. The order of the operations is that of native/src/sketch_build.h.
#include "sketch_keys.cuh"

namespace edgekv::gpu {
namespace {

constexpr int kBuildWarps = 4;
constexpr unsigned kBuildGridMax = 2048;
constexpr unsigned kAllLanes = 0xffffffffu;

// ---- arithmetic --------------------------------------------------------------------------------------------------------------

__device__ inline float least_of(float a, float b) { return a < b ? a : b; }
__device__ inline float most_of(float a, float b) { return a > b ? a : b; }
__device__ inline float magnitude(float x) { return most_of(x, __fsub_rn(0.0f, x)); }
__device__ inline float nearest(float x) { return __fsub_rn(__fadd_rn(x, 12582912.0f), 12582912.0f); }

__device__ inline float warp_most(float x) {
    for (int step = kWarp / 2; step > 0; step /= 2) {
        x = most_of(x, __shfl_xor_sync(kAllLanes, x, step));
    }
    return x;
}

// A tiny scale stands for all zeros: 0 would say that the strip is empty.
__device__ inline float scale_of(float top, float levels) { return __fdiv_rn(top > 1e-30f ? top : 1e-30f, levels); }

__device__ inline void range(const Keys & keys, int quad, float * least, float * most) {
    keys.load(0, quad, least);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        most[i] = least[i];
    }
    for (int c = 1; c < kSketchStripCells; ++c) {
        float x[4];
        keys.load(c, quad, x);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            least[i] = least_of(least[i], x[i]);
            most[i] = most_of(most[i], x[i]);
        }
    }
}

template <int Bits>
__device__ inline void spans(const Keys & keys, int quad, float * step, float * centre) {
    if constexpr (Bits == 2) {
        float least[4], most[4];
        range(keys, quad, least, most);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            step[i] = __fmul_rn(__fsub_rn(most[i], least[i]), 1.0f / 3.0f);
            centre[i] = __fmul_rn(__fadd_rn(least[i], most[i]), 0.5f);
        }
    } else {
        float sum[4] = {}, residuals[4] = {}, x[4];
        for (int c = 0; c < kSketchStripCells; ++c) {
            keys.load(c, quad, x);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sum[i] = __fadd_rn(sum[i], x[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            centre[i] = __fmul_rn(sum[i], 1.0f / kSketchStripCells);
        }
        for (int c = 0; c < kSketchStripCells; ++c) {
            keys.load(c, quad, x);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                residuals[i] = __fadd_rn(residuals[i], magnitude(__fsub_rn(x[i], centre[i])));
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            step[i] = __fmul_rn(residuals[i], 2.0f / kSketchStripCells);
        }
    }
}

// ---- strips ------------------------------------------------------------------------------------------------------------------

// The vectors of a block at the strip's lane.
struct Place {
    char * block;
    __device__ inline void put(int vector, uint32_t dword) const {
        *reinterpret_cast<uint32_t *>(block + vector * kVectorBytes) = dword;
    }
    __device__ inline void put(int vector, float x) const { *reinterpret_cast<float *>(block + vector * kVectorBytes) = x; }
};

template <int Quads>
__device__ inline void build_box(const Keys & keys, int n_quads, int lane, const Place & place) {
    float low[Quads][4], high[Quads][4];
    float top = 0.0f;
#pragma unroll
    for (int j = 0; j < Quads; ++j) {
        const int quad = lane + j * kWarp;
        if (quad < n_quads) {
            range(keys, quad, low[j], high[j]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                top = most_of(top, most_of(magnitude(low[j][i]), magnitude(high[j][i])));
            }
        }
    }
    const float scale = scale_of(warp_most(top), 127.0f);
    const float inverse = __fdiv_rn(1.0f, scale);
    int reach = 0;
#pragma unroll
    for (int j = 0; j < Quads; ++j) {
        const int quad = lane + j * kWarp;
        if (quad < n_quads) {
            uint32_t least = 0, most = 0;
#pragma unroll
            for (int i = 0; i < 4; ++i) {  // outward; to 127 where float arithmetic makes it a little more
                const int a = static_cast<int>(fmaxf(floorf(__fmul_rn(low[j][i], inverse)), -127.0f));
                const int b = static_cast<int>(fminf(ceilf(__fmul_rn(high[j][i], inverse)), 127.0f));
                least |= (static_cast<uint32_t>(a + 128) & 0xffu) << 8 * i;
                most |= (static_cast<uint32_t>(b + 128) & 0xffu) << 8 * i;
                reach += -a > b ? -a : b;
            }
            place.put(2 + 2 * quad, least);
            place.put(3 + 2 * quad, most);
        }
    }
    for (int step = kWarp / 2; step > 0; step /= 2) {
        reach += __shfl_xor_sync(kAllLanes, reach, step);
    }
    if (lane == 0) {
        place.put(0, scale);
        place.put(1, __fmul_rn(static_cast<float>(reach), scale));
    }
}

template <int Bits, int Quads>
__device__ inline void build_codes(const Keys & keys, int n_quads, int lane, float share, const SketchLayout & layout,
                                   const Place & place) {
    constexpr float kLevels = (1 << Bits) - 1;
    constexpr int kPerDword = 8 / Bits;  // quads, in neighbouring lanes
    float step[Quads][4] = {}, low[Quads][4] = {};
    uint32_t step_bytes[Quads] = {}, low_bytes[Quads] = {};

    float top = 0.0f;
#pragma unroll
    for (int j = 0; j < Quads; ++j) {
        const int quad = lane + j * kWarp;
        if (quad < n_quads) {
            spans<Bits>(keys, quad, step[j], low[j]);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                top = most_of(top, step[j][i]);
            }
        }
    }
    const float step_scale = scale_of(warp_most(top), 255.0f);
    const float to_step = __fdiv_rn(1.0f, step_scale);
    top = 0.0f;
#pragma unroll
    for (int j = 0; j < Quads; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float n = least_of(nearest(__fmul_rn(step[j][i], to_step)), 255.0f);
            step[j][i] = __fmul_rn(n, step_scale);
            low[j][i] = __fsub_rn(low[j][i], __fmul_rn(step[j][i], kLevels / 2));
            step_bytes[j] |= (static_cast<uint32_t>(static_cast<int>(n)) & 0xffu) << 8 * i;
            top = most_of(top, magnitude(low[j][i]));
        }
    }
    const float low_scale = scale_of(warp_most(top), 127.0f);
    const float to_low = __fdiv_rn(1.0f, low_scale);
#pragma unroll
    for (int j = 0; j < Quads; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float n = nearest(__fmul_rn(low[j][i], to_low));
            low[j][i] = __fmul_rn(n, low_scale);
            step[j][i] = step[j][i] > 0.0f ? __fdiv_rn(1.0f, step[j][i]) : 0.0f;
            low_bytes[j] |= (static_cast<uint32_t>(static_cast<int>(n) + 128) & 0xffu) << 8 * i;
        }
        const int quad = lane + j * kWarp;
        if (quad < n_quads) {
            place.put(3 + 2 * quad, low_bytes[j]);
            place.put(4 + 2 * quad, step_bytes[j]);
        }
    }
    if (lane == 0) {
        place.put(0, step_scale);
        place.put(1, low_scale);
        place.put(2, share);
    }

    // Against the values that the bytes stand for, so that a code makes up for their rounding.
    const int codes = layout.codes_offset / kVectorBytes;
    for (int c = 0; c < kSketchStripCells; ++c) {
#pragma unroll
        for (int j = 0; j < Quads; ++j) {
            const int quad = lane + j * kWarp;
            uint32_t packed = 0;
            if (quad < n_quads) {
                float x[4];
                keys.load(c, quad, x);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float n = nearest(__fmul_rn(__fsub_rn(x[i], low[j][i]), step[j][i]));
                    packed |= static_cast<uint32_t>(static_cast<int>(least_of(most_of(n, 0.0f), kLevels))) << 8 * i;
                }
                packed <<= Bits * (quad % kPerDword);
            }
            for (int away = 1; away < kPerDword; away *= 2) {
                packed |= __shfl_xor_sync(kAllLanes, packed, away);
            }
            if (quad < n_quads && quad % kPerDword == 0) {
                place.put(codes + c * layout.key_vectors + quad / kPerDword, packed);
            }
        }
    }
}

template <SketchKind Kind, int Quads>
__global__ void __launch_bounds__(kBuildWarps * kWarp) build_strips(SketchBuildArgs args, SketchLayout layout, int row_bytes,
                                                               int row_stride, int word_bytes) {
    const int lane = threadIdx.x % kWarp;
    const int warp = threadIdx.x / kWarp;
    const int n_heads = args.sketches.n_head_kv;
    const int64_t n_units = static_cast<int64_t>(*args.n_stale) * n_heads;
    char * rows = shared_memory() + warp * kSketchStripCells * row_stride;

    for (int64_t unit = static_cast<int64_t>(blockIdx.x) * kBuildWarps + warp; unit < n_units; unit += gridDim.x * kBuildWarps) {
        const StaleStrip stale = args.stale[unit / n_heads];
        const int head = static_cast<int>(unit % n_heads);
        const uint32_t valid = stale.valid & 0xffffu;
        const size_t block = static_cast<size_t>(head) * layout.n_blocks + stale.strip / kSketchBlockStrips;
        const Place place{args.sketches.data + stale.stream * args.sketches.stream_bytes + block * layout.block_bytes +
                          stale.strip % kSketchBlockStrips * 4};
        if (valid == 0) {
            for (int v = lane; v < layout.block_bytes / kVectorBytes; v += kWarp) {
                place.put(v, 0u);
            }
            continue;
        }

        const size_t cell = static_cast<size_t>(stale.strip) * kSketchStripCells;
        const char * src = args.k + stale.stream * args.stride_stream + cell * args.stride_cell + head * args.stride_head;
        size_t stride = args.stride_cell;
        if (args.arena != nullptr) {
            const size_t page = static_cast<size_t>(stale.stream) * args.pages_per_stream + cell / args.page_tokens;
            const int slot = args.slots[head * args.slots_stride + page];
            if (slot >= 0) {
                src = args.arena + static_cast<size_t>(slot) * args.slot_bytes + cell % args.page_tokens * row_bytes;
                stride = static_cast<size_t>(row_bytes);
            }
        }
        __syncwarp();  // all lanes are done with the keys of the strip before
        switch (word_bytes) {
            case 16: load_rows<Bytes16>(src, stride, row_bytes, valid, rows, row_stride, lane); break;
            case 8: load_rows<Bytes8>(src, stride, row_bytes, valid, rows, row_stride, lane); break;
            case 4: load_rows<uint32_t>(src, stride, row_bytes, valid, rows, row_stride, lane); break;
            default: load_rows<uint16_t>(src, stride, row_bytes, valid, rows, row_stride, lane); break;
        }
        __syncwarp();

        const Keys keys{rows, row_stride, args.k_type, places_of(valid)};
        const int n_quads = args.sketches.head_dim / 4;
        if constexpr (Kind == SketchKind::box) {
            build_box<Quads>(keys, n_quads, lane, place);
        } else {
            const float share = static_cast<float>(__popc(valid)) / kSketchStripCells;
            build_codes<Kind == SketchKind::b1 ? 1 : 2, Quads>(keys, n_quads, lane, share, layout, place);
        }
    }
}

}  // namespace

void launch_sketch_build(const SketchBuildArgs & args, Stream stream) {
    const int dim = args.sketches.head_dim;
    const int row_bytes = args.k_type == CellType::f16 ? dim * 2 : dim / 32 * 34;
    const int row_stride = (row_bytes + 15) / 16 * 16;

    // the widest words that every row begins at
    uintptr_t places = reinterpret_cast<uintptr_t>(args.k) | args.stride_cell | args.stride_head | args.stride_stream |
                       static_cast<uintptr_t>(row_bytes);
    if (args.arena != nullptr) {
        places |= reinterpret_cast<uintptr_t>(args.arena) | args.slot_bytes;
    }
    const int word_bytes = places % 16 == 0 ? 16 : places % 8 == 0 ? 8 : places % 4 == 0 ? 4 : 2;

    const int64_t n_units = static_cast<int64_t>(args.n_expected) * args.sketches.n_head_kv;
    const int64_t n_blocks = (n_units + kBuildWarps - 1) / kBuildWarps;
    const unsigned grid = n_blocks < 1 ? 1u : n_blocks > kBuildGridMax ? kBuildGridMax : static_cast<unsigned>(n_blocks);

    using Kernel = void (*)(SketchBuildArgs, SketchLayout, int, int, int);
    constexpr Kernel kernels[][2] = {{build_strips<SketchKind::box, 1>, build_strips<SketchKind::box, 2>},
                                     {build_strips<SketchKind::b1, 1>, build_strips<SketchKind::b1, 2>},
                                     {build_strips<SketchKind::b2, 1>, build_strips<SketchKind::b2, 2>}};
    const Kernel kernel = kernels[static_cast<int>(args.sketches.kind) - 1][dim > 4 * kWarp];
    const size_t shared = static_cast<size_t>(kBuildWarps) * kSketchStripCells * row_stride;
    const SketchLayout layout = device_layout(args.sketches);
    launch(kernel, {grid}, kBuildWarps * kWarp, shared, stream, args, layout, row_bytes, row_stride, word_bytes);
}

}  // namespace edgekv::gpu
