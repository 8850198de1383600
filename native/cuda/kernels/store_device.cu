#include "cuda/kernels/store_device.h"

namespace edgekv::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kBlockValues = 1024;  // values of a block at most: whole heads of one token

// ---- as ggml-cuda rounds -----------------------------------------------------------------------------------------------------

// The card's fast division, which takes subnormal numbers as zero, as with fast maths. The emulated device rounds correctly.
#if defined(__CUDACC__)
__device__ inline float quotient(float a, float b) {
    float x;
    asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
    return x;
}

__device__ inline float by_minus_eighth(float a) {
    float x;
    asm("mul.ftz.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(-0.125f));
    return x;
}

__device__ inline float reciprocal(float a) {
    float x;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(a));
    return x;
}
#else
inline float without_subnormal(float x) { return fabsf(x) < 0x1p-126f ? 0.0f : x; }
inline float quotient(float a, float b) { return without_subnormal(without_subnormal(a) / b); }
inline float by_minus_eighth(float a) { return without_subnormal(without_subnormal(a) * -0.125f); }
inline float reciprocal(float a) { return without_subnormal(1.0f / a); }
#endif

__device__ inline float largest_of_warp(float x) {
    for (int step = kWarp / 2; step > 0; step /= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    }
    return x;
}

// Each lane has one value of the block.
__device__ inline void quantise_q4(float x, int lane, char * block) {
    const unsigned most = __ballot_sync(0xffffffffu, fabsf(x) == largest_of_warp(fabsf(x)));
    const float d = by_minus_eighth(__shfl_sync(0xffffffffu, x, most != 0 ? __ffs(static_cast<int>(most)) - 1 : 0));
    const float inverse = d != 0.0f ? reciprocal(d) : 0.0f;
    const int code = min(15, static_cast<int>(fmaf(x, inverse, 8.5f)));
    const int upper = __shfl_xor_sync(0xffffffffu, code, kQuantBlock / 2);
    if (lane < kQuantBlock / 2) {
        block[2 + lane] = static_cast<char>(code | upper << 4);
    }
    if (lane == 0) {
        *reinterpret_cast<__half *>(block) = __float2half_rn(d);
    }
}

__device__ inline void quantise_q8(float x, int lane, char * block) {
    const float amax = largest_of_warp(fabsf(x));
    const float d = quotient(amax, 127.0f);
    const float inverse = d != 0.0f ? reciprocal(d) : 0.0f;
    block[2 + lane] = static_cast<char>(static_cast<int8_t>(roundf(__fmul_rn(x, inverse))));
    if (lane == 0) {
        *reinterpret_cast<__half *>(block) = __float2half_rn(d);
    }
}

// ---- writing -----------------------------------------------------------------------------------------------------------------

struct alignas(16) Bytes16 {
    uint32_t x[4];
};
struct alignas(8) Bytes8 {
    uint32_t x[2];
};

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

__device__ inline void copy_heads(char * dst, size_t stride_head, const char * staged, int n_heads, int row_bytes) {
    if (stride_head == static_cast<size_t>(row_bytes)) {
        copy_out(dst, staged, n_heads * row_bytes);
        return;
    }
    for (int h = 0; h < n_heads; ++h) {
        copy_out(dst + h * stride_head, staged + h * row_bytes, row_bytes);
    }
}

#if !defined(EDGEKV_STORE_GRID)  // tokens that have blocks of their own; tests take fewer
#    define EDGEKV_STORE_GRID 65535
#endif

struct alignas(16) Staged {
    char bytes[kBlockValues * 2];
};

// A block converts some heads of one token, of K or of V.
__global__ void __launch_bounds__(kThreads) store_rows(StoreArgs args, int heads_per_block) {
    EDGEKV_SHARED(Staged, staged);

    const bool is_v = blockIdx.z != 0;
    const StoreRows & rows = is_v ? args.v : args.k;
    const int dim = args.head_dim;
    const int first = static_cast<int>(blockIdx.x) * heads_per_block;
    const int n_heads = min(heads_per_block, args.n_head_kv - first);
    const int row_bytes = bytes_of_row(rows.type, dim);

    for (size_t token = blockIdx.y; token < static_cast<size_t>(args.n_tokens); token += gridDim.y) {
        const char * src = rows.src + token * rows.src_stride_token;
        if (rows.type == CellType::f16) {
            for (int i = threadIdx.x; i < n_heads * dim; i += blockDim.x) {
                const float * head = reinterpret_cast<const float *>(src + (first + i / dim) * rows.src_stride_head);
                reinterpret_cast<__half *>(staged.bytes)[i] = __float2half_rn(head[i % dim]);
            }
        } else {
            const int lane = threadIdx.x % kWarp;
            for (int b = threadIdx.x / kWarp; b < n_heads * dim / kQuantBlock; b += blockDim.x / kWarp) {
                const int i = b * kQuantBlock + lane;
                const float * head = reinterpret_cast<const float *>(src + (first + i / dim) * rows.src_stride_head);
                char * block = staged.bytes + b * block_bytes(rows.type);
                rows.type == CellType::q8_0 ? quantise_q8(head[i % dim], lane, block) : quantise_q4(head[i % dim], lane, block);
            }
        }
        __syncthreads();

        const int64_t row = rows.rows[token];
        const size_t offset = static_cast<size_t>(row) * rows.stride_cell + first * rows.stride_head;
        copy_heads(rows.home + offset, rows.stride_head, staged.bytes, n_heads, row_bytes);
        if (rows.second != nullptr) {
            copy_heads(rows.second + offset, rows.stride_head, staged.bytes, n_heads, row_bytes);
        }
        if (args.arena.data != nullptr) {
            const StoreSlots & arena = args.arena;
            const int64_t cell = row % arena.cells_per_stream;
            const int64_t page = row / arena.cells_per_stream * arena.pages_per_stream + cell / arena.page_tokens;
            for (int h = 0; h < n_heads; ++h) {
                const int slot = arena.slots[(first + h) * arena.slots_stride + page];
                if (slot >= 0) {
                    char * place = arena.data + static_cast<size_t>(slot) * arena.slot_bytes + (is_v ? arena.v_offset : 0) +
                                   static_cast<size_t>(cell % arena.page_tokens) * row_bytes;
                    copy_out(place, staged.bytes + h * row_bytes, row_bytes);
                }
            }
        }
        __syncthreads();  // the next token's values overwrite these
    }
}

}  // namespace

void launch_store(const StoreArgs & args, Stream stream) {
    if (args.n_tokens == 0) {
        return;
    }
    const int per_block = kBlockValues / args.head_dim;
    const unsigned parts = static_cast<unsigned>((args.n_head_kv + per_block - 1) / per_block);
    const unsigned tokens = args.n_tokens < EDGEKV_STORE_GRID ? static_cast<unsigned>(args.n_tokens) : EDGEKV_STORE_GRID;
    launch(store_rows, {parts, tokens, 2}, kThreads, 0, stream, args, per_block);
}

}  // namespace edgekv::gpu
