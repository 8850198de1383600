// Builds one group of one head. It uses only operations that IEEE 754 rounds equally everywhere, and no fused ones (the sources are
// compiled with contraction off), so every instruction set writes the same bytes.
#pragma once

#include "kernels/sketch/sketch_query.h"

namespace edgekv {
namespace {

// Loads a key in whole vectors, with zeros after the last channel.
template <int D>
inline void load_key(CellType type, const char * row, int head_dim, float * key) {
    const int dim = dim_of<D>(head_dim);
    if (type == CellType::f16) {
        for (int i = 0; i < dim; i += kLanes) {
            Simd::store(key + i, load_halves<D != kAny>(row, i, dim));
        }
        return;
    }
    if constexpr (D % kBlock == 0) {
        for (int b = 0; b < dim / kBlock; ++b) {
            const char * block = row + b * block_bytes(type);
            const F scale = Simd::dup_f16(block);
            for (int i = 0; i < kBlock; i += kLanes) {
                const F codes = type == CellType::q8_0 ? Simd::load_i8(block + 2 + i)
                                                       : Simd::load_q4(block + 2 + i % (kBlock / 2), i >= kBlock / 2);
                Simd::store(key + b * kBlock + i, Simd::mul(codes, scale));
            }
        }
    }
}

inline F magnitude(F x) { return Simd::max(x, Simd::sub(Simd::zero(), x)); }

// The scale of zeros is tiny instead of 0, because it is a divisor.
inline float scale_of(F top, float levels) {
    const float x = Simd::reduce_max(top);
    return (x > 1e-30f ? x : 1e-30f) / levels;
}

// The three dwords of eight quads of codes, a byte each: see sketch_internal.h.
inline void pack_codes(const uint8_t * codes, uint32_t * dwords) {
    uint32_t q[8];
    memcpy(q, codes, sizeof(q));
    dwords[0] = q[0] | q[1] << 3 | (q[6] & 0x03030303u) << 6;
    dwords[1] = q[2] | q[3] << 3 | (q[6] & 0x04040404u) << 4 | (q[7] & 0x04040404u) << 5;
    dwords[2] = q[4] | q[5] << 3 | (q[7] & 0x03030303u) << 6;
}

template <int D>
void build_group(const Sketch & sketch, const SketchLayout & layout, const SketchKeys & keys, int head, int group, uint64_t valid) {
    constexpr float levels = 7.0f;
    const int dim = dim_of<D>(sketch.head_dim);
    char * of_head = sketch.data + static_cast<size_t>(head) * layout.head_bytes;
    char * codes = of_head + static_cast<size_t>(group) * static_cast<size_t>(layout.code_bytes);
    char * params = of_head + layout.params_offset + static_cast<size_t>(group) * static_cast<size_t>(layout.param_bytes);
    memset(codes, 0, static_cast<size_t>(layout.code_bytes));
    memset(params, 0, static_cast<size_t>(layout.param_bytes));
    if (valid == 0) {
        return;
    }
    const char * first = keys.k + static_cast<size_t>(group) * kGroupCells * keys.stride_cell + static_cast<size_t>(head) * keys.stride_head;
    const auto load = [&](int cell, float * key) { load_key<D>(keys.type, first + static_cast<size_t>(cell) * keys.stride_cell, dim, key); };

    constexpr int most_channels = most_dim<D>();
    alignas(64) float key[most_channels], low[most_channels], most[most_channels];
    load(__builtin_ctzll(valid), low);
    load(__builtin_ctzll(valid), most);
    for (uint64_t left = valid & (valid - 1); left != 0; left &= left - 1) {
        load(__builtin_ctzll(left), key);
        for (int i = 0; i < dim; i += kLanes) {
            const F x = Simd::load(key + i);
            Simd::store(low + i, Simd::min(Simd::load(low + i), x));
            Simd::store(most + i, Simd::max(Simd::load(most + i), x));
        }
    }

    alignas(64) float step[most_channels];
    F top = Simd::zero(), reach = Simd::zero();
    for (int i = 0; i < dim; i += kLanes) {
        const F s = Simd::mul(Simd::sub(Simd::load(most + i), Simd::load(low + i)), Simd::set1(1.0f / levels));
        Simd::store(step + i, s);
        top = Simd::max(top, s);
        reach = Simd::max(reach, magnitude(Simd::load(low + i)));
    }
    const float step_scale = scale_of(top, 255.0f), low_scale = scale_of(reach, 127.0f);
    uint8_t * low_bytes = reinterpret_cast<uint8_t *>(params) + kParamHeader;
    uint8_t * step_bytes = low_bytes + layout.padded;
    memcpy(params, &step_scale, sizeof(float));
    memcpy(params + sizeof(float), &low_scale, sizeof(float));
    for (int i = 0; i < dim; i += kLanes) {
        const F n = Simd::min(Simd::round(Simd::mul(Simd::load(step + i), Simd::set1(1.0f / step_scale))), Simd::set1(255.0f));
        const F at = Simd::round(Simd::mul(Simd::load(low + i), Simd::set1(1.0f / low_scale)));
        const F s = Simd::mul(n, Simd::set1(step_scale));
        Simd::store_low_bytes(step_bytes + i, Simd::to_int(n));
        Simd::store_low_bytes(low_bytes + i, Simd::to_int(Simd::add(at, Simd::set1(128.0f))));
        Simd::store(low + i, Simd::mul(at, Simd::set1(low_scale)));
        Simd::store(step + i, Simd::where_positive(s, Simd::div(Simd::set1(1.0f), s), Simd::zero()));
    }
    if constexpr (D == kAny) {
        memset(low_bytes + dim, 0, static_cast<size_t>(layout.padded - dim));  // whole vectors wrote a 0 + 128 there
    }

    // Codes refer to the values of the bytes, and so make up for the bytes' rounding.
    alignas(64) uint8_t levels_of[(most_channels + 31) / 32 * 32 + 64] = {};
    for (uint64_t left = valid; left != 0; left &= left - 1) {
        const int cell = __builtin_ctzll(left);
        load(cell, key);
        for (int i = 0; i < dim; i += kLanes) {
            const F x = Simd::mul(Simd::sub(Simd::load(key + i), Simd::load(low + i)), Simd::load(step + i));
            const F n = Simd::min(Simd::max(Simd::round(x), Simd::zero()), Simd::set1(levels));
            Simd::store_low_bytes(levels_of + i, Simd::to_int(n));
        }
        char * at = codes + (cell / kVectorCells * layout.n_dwords * kVectorCells + cell % kVectorCells) * 4;
        for (int t = 0; t < (dim + 31) / 32; ++t) {
            uint32_t dwords[3];
            pack_codes(levels_of + 32 * t, dwords);
            for (int d = 0; d < 3; ++d) {
                memcpy(at + (3 * t + d) * kVectorBytes, &dwords[d], 4);
            }
        }
    }
}

inline void build(const Sketch & sketch, const SketchLayout & layout, const SketchKeys & keys, int head, int group, uint64_t valid) {
    for_head_dim(sketch.head_dim, [&](auto dim) { build_group<dim>(sketch, layout, keys, head, group, valid); });
}

}  // namespace
}  // namespace edgekv
