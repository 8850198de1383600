// Builds one strip of one head. Only operations that IEEE 754 rounds the same everywhere are used, and no fused ones (the
// sources are compiled with contraction off), so that every instruction set writes the same bytes.
#pragma once

#include "sketch_query.h"

namespace edgekv {
namespace {

// The keys of a strip as floats, and where in a block the strip's dwords lie.
template <int D>
struct Strip {
    alignas(64) float key[kSketchStripCells][D];
    char * block;  // at the strip's lane
};

template <int D>
inline void load_key(CellType type, const char * row, float * key) {
    if (type == CellType::f16) {
        for (int i = 0; i < D; i += kLanes) {
            Simd::store(key + i, Simd::load_f16(row + i * 2));
        }
        return;
    }
    if constexpr (D % kBlock == 0) {
        for (int b = 0; b < D / kBlock; ++b) {
            const char * block = row + b * kBlockBytes;
            const F scale = Simd::dup_f16(block);
            for (int i = 0; i < kBlock; i += kLanes) {
                Simd::store(key + b * kBlock + i, Simd::mul(Simd::load_i8(block + 2 + i), scale));
            }
        }
    }
}

// Invalid cells are replaced by the valid ones in turn.
template <int D>
inline void load_strip(const SketchKeys & keys, int head, int strip, uint32_t valid, Strip<D> & out) {
    const char * first = keys.k + static_cast<size_t>(strip) * kSketchStripCells * keys.stride_cell +
                         static_cast<size_t>(head) * keys.stride_head;
    int next = -1;
    for (int c = 0; c < kSketchStripCells; ++c) {
        int cell = c;
        if ((valid >> c & 1) == 0) {
            do {
                next = (next + 1) % kSketchStripCells;
            } while ((valid >> next & 1) == 0);
            cell = next;
        }
        load_key<D>(keys.type, first + static_cast<size_t>(cell) * keys.stride_cell, out.key[c]);
    }
}

inline void put(char * at, int vector, const void * dword) { memcpy(at + vector * kVectorBytes, dword, 4); }
inline void put_float(char * at, int vector, float x) { put(at, vector, &x); }

template <int D>
inline void put_params(char * params, const uint8_t * first, const uint8_t * second) {
    for (int i = 0; i < D / 4; ++i) {
        put(params, 2 * i, first + 4 * i);
        put(params, 2 * i + 1, second + 4 * i);
    }
}

// A tiny scale stands for all zeros: 0 would say that the strip is empty.
inline float scale_of(F top, float levels) {
    const float x = Simd::reduce_max(top);
    return (x > 1e-30f ? x : 1e-30f) / levels;
}

inline F magnitude(F x) { return Simd::max(x, Simd::sub(Simd::zero(), x)); }

template <int D>
inline void range(const Strip<D> & strip, int i, F & least, F & most) {
    least = most = Simd::load(strip.key[0] + i);
    for (int c = 1; c < kSketchStripCells; ++c) {
        const F x = Simd::load(strip.key[c] + i);
        least = Simd::min(least, x);
        most = Simd::max(most, x);
    }
}

template <int D>
void build_box(const SketchLayout & layout, const Strip<D> & strip) {
    alignas(64) float low[D], high[D];
    F top = Simd::zero();
    for (int i = 0; i < D; i += kLanes) {
        F least, most;
        range(strip, i, least, most);
        Simd::store(low + i, least);
        Simd::store(high + i, most);
        top = Simd::max(top, Simd::max(magnitude(least), magnitude(most)));
    }
    const float scale = scale_of(top, 127.0f);
    const float inverse = 1.0f / scale;
    uint8_t least[D], most[D];
    int reach = 0;
    for (int i = 0; i < D; ++i) {  // outward; to 127 where float arithmetic makes it a little more
        const int a = static_cast<int>(fmaxf(floorf(low[i] * inverse), -127.0f));
        const int b = static_cast<int>(fminf(ceilf(high[i] * inverse), 127.0f));
        least[i] = static_cast<uint8_t>(a + 128);
        most[i] = static_cast<uint8_t>(b + 128);
        reach += -a > b ? -a : b;
    }
    put_float(strip.block, 0, scale);
    put_float(strip.block, 1, static_cast<float>(reach) * scale);
    put_params<D>(strip.block + layout.params_offset, least, most);
}

// What the channels of a strip span: code levels 0..3 from minimum to maximum (b2), or 0 and 1 at mean -+ mean |residual| (b1).
template <int D, int Bits>
inline void spans(const Strip<D> & strip, int i, F & step, F & centre) {
    if constexpr (Bits == 2) {
        F least, most;
        range(strip, i, least, most);
        step = Simd::mul(Simd::sub(most, least), Simd::set1(1.0f / 3.0f));
        centre = Simd::mul(Simd::add(least, most), Simd::set1(0.5f));
    } else {
        F sum = Simd::zero(), residuals = Simd::zero();
        for (int c = 0; c < kSketchStripCells; ++c) {
            sum = Simd::add(sum, Simd::load(strip.key[c] + i));
        }
        centre = Simd::mul(sum, Simd::set1(1.0f / kSketchStripCells));
        for (int c = 0; c < kSketchStripCells; ++c) {
            residuals = Simd::add(residuals, magnitude(Simd::sub(Simd::load(strip.key[c] + i), centre)));
        }
        step = Simd::mul(residuals, Simd::set1(2.0f / kSketchStripCells));
    }
}

// One dword of codes from the bytes of 32 / Bits channels.
template <int Bits>
inline uint32_t pack_codes(const uint8_t * codes) {
    uint64_t pair[4 / Bits];
    memcpy(pair, codes, sizeof(pair));
    uint64_t x = 0;
    for (int i = 0; i < 4 / Bits; ++i) {
        x |= pair[i] << 2 * Bits * i;
    }
    return static_cast<uint32_t>(x) | static_cast<uint32_t>(x >> 32) << Bits;
}

template <int D, int Bits>
void build_codes(const SketchLayout & layout, const Strip<D> & strip, float share) {
    constexpr float levels = (1 << Bits) - 1;
    constexpr int padded = (D + 32 / Bits - 1) / (32 / Bits) * (32 / Bits);
    alignas(64) float step[D], low[D];
    F top = Simd::zero();
    for (int i = 0; i < D; i += kLanes) {
        F s, centre;
        spans<D, Bits>(strip, i, s, centre);
        Simd::store(step + i, s);
        Simd::store(low + i, centre);
        top = Simd::max(top, s);
    }
    const float step_scale = scale_of(top, 255.0f);
    uint8_t step_bytes[D], low_bytes[D];
    top = Simd::zero();
    for (int i = 0; i < D; i += kLanes) {
        const F n = Simd::min(Simd::round(Simd::mul(Simd::load(step + i), Simd::set1(1.0f / step_scale))), Simd::set1(255.0f));
        const F s = Simd::mul(n, Simd::set1(step_scale));
        const F x = Simd::sub(Simd::load(low + i), Simd::mul(s, Simd::set1(levels / 2)));
        Simd::store_low_bytes(step_bytes + i, Simd::to_int(n));
        Simd::store(step + i, s);
        Simd::store(low + i, x);
        top = Simd::max(top, magnitude(x));
    }
    const float low_scale = scale_of(top, 127.0f);
    for (int i = 0; i < D; i += kLanes) {
        const F n = Simd::round(Simd::mul(Simd::load(low + i), Simd::set1(1.0f / low_scale)));
        const F s = Simd::load(step + i);
        Simd::store_low_bytes(low_bytes + i, Simd::to_int(Simd::add(n, Simd::set1(128.0f))));
        Simd::store(low + i, Simd::mul(n, Simd::set1(low_scale)));
        Simd::store(step + i, Simd::where_positive(s, Simd::div(Simd::set1(1.0f), s), Simd::zero()));
    }
    put_float(strip.block, 0, step_scale);
    put_float(strip.block, 1, low_scale);
    put_float(strip.block, 2, share);
    put_params<D>(strip.block + layout.params_offset, low_bytes, step_bytes);

    // Against the values that the bytes stand for, so that a code makes up for their rounding.
    alignas(64) uint8_t codes[padded + 64] = {};
    for (int c = 0; c < kSketchStripCells; ++c) {
        for (int i = 0; i < D; i += kLanes) {
            const F x = Simd::mul(Simd::sub(Simd::load(strip.key[c] + i), Simd::load(low + i)), Simd::load(step + i));
            const F n = Simd::min(Simd::max(Simd::round(x), Simd::zero()), Simd::set1(levels));
            Simd::store_low_bytes(codes + i, Simd::to_int(n));
        }
        for (int v = 0; v < padded / (32 / Bits); ++v) {
            const uint32_t packed = pack_codes<Bits>(codes + v * (32 / Bits));
            put(strip.block + layout.codes_offset, c * layout.key_vectors + v, &packed);
        }
    }
}

template <int D>
void build_strip(const Sketch & sketch, const SketchLayout & layout, const SketchKeys & keys, int head, int index,
                 uint32_t valid) {
    Strip<D> strip;
    strip.block = sketch.data + (static_cast<size_t>(head) * layout.n_blocks + index / kSketchBlockStrips) * layout.block_bytes +
                  index % kSketchBlockStrips * 4;
    valid &= 0xffffu;
    if (valid == 0) {
        for (int v = 0; v < layout.block_bytes / kVectorBytes; ++v) {
            put_float(strip.block, v, 0.0f);
        }
        return;
    }
    load_strip<D>(keys, head, index, valid, strip);
    const float share = static_cast<float>(__builtin_popcount(valid)) / kSketchStripCells;
    switch (sketch.kind) {
        case SketchKind::none: return;
        case SketchKind::box: return build_box<D>(layout, strip);
        case SketchKind::b1: return build_codes<D, 1>(layout, strip, share);
        case SketchKind::b2: return build_codes<D, 2>(layout, strip, share);
    }
}

inline void build(const Sketch & sketch, const SketchLayout & layout, const SketchKeys & keys, int head, int strip,
                  uint32_t valid) {
    switch (sketch.head_dim) {
        case 64: return build_strip<64>(sketch, layout, keys, head, strip, valid);
        case 80: return build_strip<80>(sketch, layout, keys, head, strip, valid);
        case 96: return build_strip<96>(sketch, layout, keys, head, strip, valid);
        case 128: return build_strip<128>(sketch, layout, keys, head, strip, valid);
        case 256: return build_strip<256>(sketch, layout, keys, head, strip, valid);
    }
}

}  // namespace
}  // namespace edgekv
