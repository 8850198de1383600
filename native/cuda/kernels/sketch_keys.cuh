// The keys of a group of cells: each row is read once, from home or from a slot, and kept unchanged in shared memory.
#pragma once

#include "cuda/kernels/sketch_device.h"
#include "kernels/sketch/sketch_internal.h"

namespace edgekv::gpu {
namespace {

constexpr int kKeyLoads = 8;  // in flight for each lane

struct alignas(16) Bytes16 {
    uint32_t x[4];
};
struct alignas(8) Bytes8 {
    uint32_t x[2];
};
struct alignas(8) Halves {
    __half x[4];
};

// The rows of a launch: their layout in shared memory, the widest words that every row begins at, and how many lie there at a time.
struct KeyRows {
    int row_bytes, row_stride, word_bytes, n_rows;
};

// The stride is a few banks longer than the row, so that lanes with a row each use different banks.
inline KeyRows key_rows(const SketchHome & home, int head_dim, int n_rows) {
    KeyRows rows;
    rows.n_rows = n_rows;
    rows.row_bytes = bytes_of_row(home.type, head_dim);
    rows.row_stride = (rows.row_bytes + 15) / 16 * 16 + 16;
    uintptr_t places = reinterpret_cast<uintptr_t>(home.k.data) | home.k.stride_cell | home.k.stride_head | home.stride_stream |
                       static_cast<uintptr_t>(rows.row_bytes);
    if (home.arena.data != nullptr) {
        places |= reinterpret_cast<uintptr_t>(home.arena.data) | home.arena.slot_bytes;
    }
    rows.word_bytes = places % 16 == 0 ? 16 : places % 8 == 0 ? 8 : places % 4 == 0 ? 4 : 2;
    return rows;
}

// A block's shared memory holds each row's source (null: the row is not wanted), then the rows.
inline size_t key_shared_bytes(const KeyRows & rows) { return rows.n_rows * (sizeof(const char *) + static_cast<size_t>(rows.row_stride)); }

template <class T>
__device__ inline void load_rows(const char * const * from, const KeyRows & rows, char * to) {
    const unsigned per_row = static_cast<unsigned>(rows.row_bytes) / sizeof(T);
    const unsigned n = per_row * static_cast<unsigned>(rows.n_rows);
    for (unsigned first = threadIdx.x; first < n; first += blockDim.x * kKeyLoads) {
        T x[kKeyLoads] = {};
#pragma unroll
        for (int j = 0; j < kKeyLoads; ++j) {
            const unsigned i = first + j * blockDim.x, row = i / per_row;
            if (i < n && from[row] != nullptr) {
                x[j] = reinterpret_cast<const T *>(from[row])[i % per_row];
            }
        }
#pragma unroll
        for (int j = 0; j < kKeyLoads; ++j) {
            const unsigned i = first + j * blockDim.x, row = i / per_row;
            if (i < n) {
                reinterpret_cast<T *>(to + row * rows.row_stride)[i % per_row] = x[j];
            }
        }
    }
}

// Loads the rows of n_rows cells from `first` on whose bit is set in `valid`; the others become zeros. A block of at least n_rows threads calls it.
// Barriers before and after the copy: no warp still uses the old rows, and all see the new ones. Addresses lie beside the rows, and the last of them
// was read before the previous call's end. Returns the rows' address.
__device__ inline char * load_keys(const SketchHome & home, const KeyRows & rows, int stream, int head, int first, uint64_t valid,
                                   char * shared) {
    const char ** const from = reinterpret_cast<const char **>(shared);
    char * const to = shared + rows.n_rows * sizeof(const char *);
    if (static_cast<int>(threadIdx.x) < rows.n_rows) {
        const char * row = nullptr;
        if ((valid >> threadIdx.x & 1) != 0) {
            const int cell = first + static_cast<int>(threadIdx.x);
            row = home.arena.row(stream, cell, head, 0, rows.row_bytes);
            if (row == nullptr) {
                row = home.k.at(static_cast<size_t>(cell), static_cast<size_t>(head)) + stream * home.stride_stream;
                if (!home.brought) {
                    reads_home(rows.row_bytes);
                }
            }
        }
        from[threadIdx.x] = row;
    }
    __syncthreads();
    switch (rows.word_bytes) {
        case 16: load_rows<Bytes16>(from, rows, to); break;
        case 8: load_rows<Bytes8>(from, rows, to); break;
        case 4: load_rows<uint32_t>(from, rows, to); break;
        default: load_rows<uint16_t>(from, rows, to); break;
    }
    __syncthreads();
    return to;
}

// Four channels of a key.
__device__ inline void key_quad(CellType type, const char * row, int quad, float * x) {
    if (type == CellType::f16) {
        const Halves h = reinterpret_cast<const Halves *>(row)[quad];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[i] = __half2float(h.x[i]);
        }
    } else {
        const char * block = row + quad / 8 * block_bytes(type);
        const float scale = __half2float(*reinterpret_cast<const __half *>(block));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int code = type == CellType::q8_0
                                 ? static_cast<int8_t>(block[2 + quad % 8 * 4 + i])
                                 : (static_cast<uint8_t>(block[2 + quad % 4 * 4 + i]) >> quad % 8 / 4 * 4 & 15) - 8;
            x[i] = __fmul_rn(static_cast<float>(code), scale);
        }
    }
}

}  // namespace
}  // namespace edgekv::gpu
