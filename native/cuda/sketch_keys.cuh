// The keys of a strip: read from home or from a slot, each row once, and kept in shared memory as they came.
#pragma once

#include "sketch_device_layout.h"

namespace edgekv::gpu {
namespace {

constexpr int kBuildLoads = 8;  // in flight for each lane

struct alignas(16) Bytes16 {
    uint32_t x[4];
};
struct alignas(8) Bytes8 {
    uint32_t x[2];
};
struct alignas(8) Halves {
    __half x[4];
};

// The rows of valid cells, each read once, to 16 places in shared memory.
template <class T>
__device__ inline void load_rows(const char * src, size_t stride, int row_bytes, uint32_t valid, char * dst, int dst_stride,
                                 int lane) {
    const unsigned per_row = static_cast<unsigned>(row_bytes) / sizeof(T);
    const unsigned n = per_row * kSketchStripCells;
    for (unsigned first = lane; first < n; first += kWarp * kBuildLoads) {
        T x[kBuildLoads] = {};
#pragma unroll
        for (int j = 0; j < kBuildLoads; ++j) {
            const unsigned i = first + j * kWarp, row = i / per_row;
            if (i < n && (valid >> row & 1) != 0) {
                x[j] = reinterpret_cast<const T *>(src + row * stride)[i % per_row];
            }
        }
#pragma unroll
        for (int j = 0; j < kBuildLoads; ++j) {
            const unsigned i = first + j * kWarp, row = i / per_row;
            if (i < n) {
                reinterpret_cast<T *>(dst + row * dst_stride)[i % per_row] = x[j];
            }
        }
    }
}

// Four bits for each key: the cell that it is. Invalid cells are replaced by the valid ones in turn.
__device__ inline uint64_t places_of(uint32_t valid) {
    uint64_t places = 0;
    uint32_t left = 0;
    for (int c = 0; c < kSketchStripCells; ++c) {
        int cell = c;
        if ((valid >> c & 1) == 0) {
            left = left == 0 ? valid : left;
            cell = __ffs(static_cast<int>(left)) - 1;
            left &= left - 1;
        }
        places |= static_cast<uint64_t>(cell) << 4 * c;
    }
    return places;
}

struct Keys {
    const char * rows;
    int row_stride;
    CellType type;
    uint64_t places;

    // four channels of key c
    __device__ inline void load(int c, int quad, float * x) const {
        const char * row = rows + static_cast<int>(places >> 4 * c & 15) * row_stride;
        if (type == CellType::f16) {
            const Halves h = reinterpret_cast<const Halves *>(row)[quad];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                x[i] = __half2float(h.x[i]);
            }
        } else {
            const char * block = row + quad / 8 * 34;
            const float scale = __half2float(*reinterpret_cast<const __half *>(block));
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                x[i] = __fmul_rn(static_cast<float>(static_cast<int8_t>(block[2 + quad % 8 * 4 + i])), scale);
            }
        }
    }
};

}  // namespace
}  // namespace edgekv::gpu
