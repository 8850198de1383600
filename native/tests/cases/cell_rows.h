// Random numbers, and rows of K and V in the formats of the cache.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "host_memory.h"
#include "kernels/half.h"
#include "kernels/layout.h"

namespace test {

using edgekv::CellType;
using edgekv::channel;
using edgekv::to_half;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15u + 1) {}
    uint64_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
    }
    int below(int n) { return static_cast<int>(next() % static_cast<uint64_t>(n)); }
    bool one_of(int n) { return below(n) == 0; }
    template <class T, size_t n>
    T pick(const T (&of)[n]) { return of[next() % n]; }
    template <class T>
    void shuffle(std::vector<T> & all) {
        for (size_t i = all.size(); i > 1; --i) {
            std::swap(all[i - 1], all[next() % i]);
        }
    }
    template <class T>
    std::vector<T> bytes(size_t n) {
        std::vector<T> all(n);
        std::generate(all.begin(), all.end(), [&] { return static_cast<T>(next() >> 32); });
        return all;
    }
    float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }                          // [0, 1)
    float normal() { return (uniform() + uniform() + uniform() + uniform() - 2.0f) * 1.7320508f; }  // roughly
};

// ---- halves ------------------------------------------------------------------------------------------------------------------

// The upper half of a float, as shares of sketches are stored.
inline uint16_t upper_half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(x));
    return static_cast<uint16_t>(bits >> 16);
}

inline float from_upper_half(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

// ---- rows --------------------------------------------------------------------------------------------------------------------

constexpr CellType kCellTypes[] = {CellType::f16, CellType::q8_0, CellType::q4_0};
constexpr int kNumCellTypes = 3;

// The types of K and of V, for `pair` below kTypePairs; both are f16 in the first.
constexpr int kTypePairs = kNumCellTypes * kNumCellTypes;
constexpr CellType k_type_of(int pair) { return kCellTypes[pair % kNumCellTypes]; }
constexpr CellType v_type_of(int pair) { return kCellTypes[pair / kNumCellTypes]; }

inline size_t row_bytes(CellType type, int head_dim) { return static_cast<size_t>(edgekv::bytes_of_row(type, head_dim)); }

// ---- K or V of a layer -------------------------------------------------------------------------------------------------------

struct RowsShape {
    CellType type;
    int head_dim, n_head_kv, n_cells;
    size_t head_gap, cell_gap;  // bytes behind each row, and behind the last of each cell
};

struct CacheRows {
    Bytes bytes;  // ends where the last row does
    size_t stride_cell, stride_head;
    double largest = 0.0;  // of all values
    double longest = 0.0;  // of all rows, as vectors
};

// value(cell, head, i) is asked once for each channel, in the order in which they lie. Rows of hidden(cell) hold NaN: nobody may read them.
template <class Value, class Hidden>
CacheRows cache_rows(const RowsShape & shape, const Value & value, const Hidden & hidden) {
    CacheRows out;
    const size_t bytes = row_bytes(shape.type, shape.head_dim);
    out.stride_head = bytes + shape.head_gap;
    out.stride_cell = out.stride_head * static_cast<size_t>(shape.n_head_kv) + shape.cell_gap;
    out.bytes.resize(out.stride_cell * static_cast<size_t>(shape.n_cells - 1) +
                     out.stride_head * static_cast<size_t>(shape.n_head_kv - 1) + bytes);
    std::vector<float> row(static_cast<size_t>(shape.head_dim));
    for (int cell = 0; cell < shape.n_cells; ++cell) {
        for (int h = 0; h < shape.n_head_kv; ++h) {
            double norm = 0.0;
            for (int i = 0; i < shape.head_dim; ++i) {
                const float x = value(cell, h, i);
                row[static_cast<size_t>(i)] = x;
                norm += x * x;
                out.largest = std::max(out.largest, std::fabs(static_cast<double>(x)));
            }
            out.longest = std::max(out.longest, std::sqrt(norm));
            char * const at = out.bytes.data() + static_cast<size_t>(cell) * out.stride_cell + static_cast<size_t>(h) * out.stride_head;
            edgekv::store_row(shape.type, row.data(), shape.head_dim, at);
            if (hidden(cell)) {
                std::memset(at, 0xff, bytes);
            }
        }
    }
    return out;
}

}  // namespace test
