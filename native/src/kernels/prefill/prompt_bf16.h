// Products of bf16 pairs, summed up in single precision: by tiles (AMX) or by vectors (AVX512_BF16). Included by the translation units
// that have the instructions, and by tests with tiles in plain C++.
//
// bf16 keeps 8 bits of a number. Weights and values need no more, because their errors average out over the cells; queries and keys usually need
// no more. If their products are so large that the rounding would show in the logits, both are split into a bf16 and its rest, and only the
// product of the two rests is dropped: this keeps 16 bits.
#pragma once

#include <immintrin.h>

#include "kernels/prefill/prompt_kernel.h"

namespace edgekv {
namespace {

constexpr int kPair = 2;             // bf16 in a dword
constexpr int kTileChannels = 32;    // bf16 side by side in a tile
constexpr uint32_t kUpper = 0xffff0000u;

// Rounded to nearest; the low half is noise.
inline I rounded_bits(F x) { return Simd::iadd(Simd::as_int(x), Simd::iset1(0x8000)); }
inline I pair_bits(I even, I odd) {  // the upper halves of both, even below
    return Simd::select(Simd::iset1(static_cast<int>(kUpper)), odd, Simd::template right<16>(even));
}
inline F upper(I bits) { return Simd::as_float(Simd::iand(bits, Simd::iset1(static_cast<int>(kUpper)))); }

// Pairs of channels of 32 floats, as bf16 and as the rest: [16] dwords each.
struct Split {
    I high, low;
};
// 16 even and 16 odd values
inline Split split(F even, F odd) {
    const I e = rounded_bits(even), o = rounded_bits(odd);
    const F rest_even = Simd::sub(even, upper(e)), rest_odd = Simd::sub(odd, upper(o));
    return {pair_bits(e, o), pair_bits(rounded_bits(rest_even), rounded_bits(rest_odd))};
}

inline I bf16_row(F first, F second) {  // 32 values side by side
    const I a = Simd::template right<16>(rounded_bits(first)), b = Simd::template right<16>(rounded_bits(second));
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_packus_epi32(a, b));
}

inline F magnitude(F x) { return Simd::as_float(Simd::iand(Simd::as_int(x), Simd::iset1(0x7fffffff))); }

// Channels [i, i + kLanes) of a cell; zeros for missing cells, and after the head's channels.
template <CellType T>
inline F channels_of(const Cells & cells, int cell, int i) {
    if (!cells.has(cell)) {
        return Simd::zero();
    }
    const int left = cells.head_dim - i;
    if (left >= kLanes) {
        return load_channels<true>(T, cells.row(cell), i, cells.head_dim);
    }
    return left > 0 ? Simd::load_some_f16(cells.row(cell) + 2 * i, left) : Simd::zero();  // blocks are whole vectors
}

// Rows of kPromptCells keys [64][channels] as bf16, and the largest of each channel; or only their rests.
template <CellType T, bool kRests>
inline void pack_keys(const Cells & cells, int channels, char * out, float * largest) {
    const size_t row_bytes = static_cast<size_t>(channels) * kPair;
    for (int i = 0; i < channels; i += kTileChannels) {
        F top[2] = {Simd::zero(), Simd::zero()};
        for (int c = 0; c < kPromptCells; ++c) {
            const F x = channels_of<T>(cells, c, i), y = channels_of<T>(cells, c, i + kLanes);
            char * const to = out + static_cast<size_t>(c) * row_bytes + i * kPair;
            if constexpr (kRests) {
                Simd::istore(to, bf16_row(Simd::sub(x, upper(rounded_bits(x))), Simd::sub(y, upper(rounded_bits(y)))));
            } else {
                Simd::istore(to, bf16_row(x, y));
                top[0] = Simd::max(top[0], magnitude(x));
                top[1] = Simd::max(top[1], magnitude(y));
            }
        }
        if constexpr (!kRests) {
            Simd::store(largest + i, top[0]);
            Simd::store(largest + i + kLanes, top[1]);
        }
    }
}

// Values transposed, [channels][64] as bf16.
template <CellType T>
inline void pack_values(const Cells & cells, int channels, char * out) {
    for (int c = 0; c < kPromptCells; ++c) {
        cells.fetch_ahead(c);
    }
    for (int d = 0; d < channels; d += kLanes) {
        for (int c = 0; c < kPromptCells; c += 2 * kLanes) {
            F pairs[kLanes];
            EDGEKV_UNROLL
            for (int i = 0; i < kLanes; ++i) {
                const F even = channels_of<T>(cells, c + 2 * i, d), odd = channels_of<T>(cells, c + 2 * i + 1, d);
                pairs[i] = Simd::as_float(pair_bits(rounded_bits(even), rounded_bits(odd)));
            }
            Simd::transpose(pairs);
            EDGEKV_UNROLL
            for (int i = 0; i < kLanes; ++i) {
                Simd::store(out + (static_cast<size_t>(d + i) * kPromptCells + static_cast<size_t>(c)) * kPair, pairs[i]);
            }
        }
    }
}

// Values and weights as pairs of cells.
struct ValuesBf16 {
    static constexpr int kDegree = 3;

    static void pack_v(const Cells & cells, int channels, char * v) {
        for_type(cells.type, [&](auto type) { pack_values<type>(cells, channels, v); });
    }
    static void put(float * weights, int cell, F & even, F & odd) {
        const I e = rounded_bits(even), o = rounded_bits(odd);
        Simd::istore(weights + cell / kPair * kLanes, pair_bits(e, o));
        even = upper(e);  // the sum takes the same rounded weights as the product
        odd = upper(o);
    }
    static float weight(const float * weights, int cell, int lane) {
        uint16_t upper_half;
        memcpy(&upper_half, reinterpret_cast<const char *>(weights + cell / kPair * kLanes + lane) + cell % kPair * 2, 2);
        const uint32_t bits = static_cast<uint32_t>(upper_half) << 16;
        float x;
        memcpy(&x, &bits, 4);
        return x;
    }
};

// bf16 rounds logits, in powers of two, by about 2^-9 of the root of the summed squares of the channels' largest products. Operands are split
// if this root reaches kLargeProducts. The default model stays below 110, with a KLD of 1.5e-5.
constexpr float kLargeProducts = 128.0f;

// Scores by tiles: a tile of keys has 16 cells and 32 channels, one of queries 16 pairs of channels and 16 queries.
template <class Tiles>
struct KeysTiles {
    static constexpr int kPanels = 2;
    static constexpr int kCellsOfTile = 16;

    // of each channel, over all queries of the item and over the cells of the block
    alignas(64) float largest_q[kMaxHeadDim] = {};
    alignas(64) float largest_k[kMaxHeadDim];
    bool splits = false;  // at the block at hand

    // [channels / 2][16 queries] pairs, then their rests
    void pack_q(const float * queries, int channels, char * panel) {
        char * const rests = panel + static_cast<size_t>(channels * kLanes) * kPair;
        for (int d = 0; d < channels; d += kLanes) {
            F x[kLanes];
            F top = Simd::load(largest_q + d);
            EDGEKV_UNROLL
            for (int r = 0; r < kLanes; ++r) {
                x[r] = Simd::load(queries + r * channels + d);
                top = Simd::max(top, magnitude(x[r]));
            }
            Simd::store(largest_q + d, top);
            Simd::transpose(x);
            EDGEKV_UNROLL
            for (int i = 0; i < kLanes; i += kPair) {
                const Split s = split(x[i], x[i + 1]);
                const size_t to = static_cast<size_t>((d + i) / kPair * kLanes) * 4;
                Simd::istore(panel + to, s.high);
                Simd::istore(rests + to, s.low);
            }
        }
    }

    void pack_k(const Cells & cells, int channels, char * k) {
        for_type(cells.type, [&](auto type) { pack_keys<type, false>(cells, channels, k, largest_k); });
        F squares = Simd::zero();
        for (int d = 0; d < channels; d += kLanes) {
            const F product = Simd::mul(Simd::load(largest_q + d), Simd::load(largest_k + d));
            squares = Simd::fma(product, product, squares);
        }
        splits = !(Simd::sum(squares) < kLargeProducts * kLargeProducts);
        if (splits) {
            char * const rests = k + static_cast<size_t>(kPromptCells * channels) * kPair;
            for_type(cells.type, [&](auto type) { pack_keys<type, true>(cells, channels, rests, nullptr); });
        }
        for (int c = 0; c < kPromptCells; ++c) {
            cells.fetch_ahead(c);
        }
    }

    // Tiles 0 to 3 are scores, 4 and 5 keys, 6 and 7 queries.
    void scores(const char * k, int channels, int, const Panels & p) const {
        const size_t key_stride = static_cast<size_t>(channels) * kPair;
        const char * const rests = k + key_stride * kPromptCells;
        const size_t q_rest = static_cast<size_t>(channels * kLanes) * kPair;
        constexpr size_t q_stride = kLanes * 4;
        const char * const q0 = p.q[0];
        const char * const q1 = p.q[p.n - 1];  // with one panel, the same again
        for (int c = 0; c < kPromptCells; c += 2 * kCellsOfTile) {
            Tiles::template zero<0>();
            Tiles::template zero<1>();
            Tiles::template zero<2>();
            Tiles::template zero<3>();
            const size_t first = static_cast<size_t>(c) * key_stride, second = first + kCellsOfTile * key_stride;
            for (int d = 0; d < channels; d += kTileChannels) {
                const size_t at_q = static_cast<size_t>(d / kPair) * q_stride, at_k = static_cast<size_t>(d) * kPair;
                const auto all = [] {
                    Tiles::template multiply<0, 4, 6>();
                    Tiles::template multiply<1, 5, 6>();
                    Tiles::template multiply<2, 4, 7>();
                    Tiles::template multiply<3, 5, 7>();
                };
                Tiles::template load<4>(k + first + at_k, key_stride);
                Tiles::template load<5>(k + second + at_k, key_stride);
                if (splits) {
                    Tiles::template load<6>(q0 + q_rest + at_q, q_stride);
                    Tiles::template load<7>(q1 + q_rest + at_q, q_stride);
                    all();
                }
                Tiles::template load<6>(q0 + at_q, q_stride);
                Tiles::template load<7>(q1 + at_q, q_stride);
                all();
                if (splits) {
                    Tiles::template load<4>(rests + first + at_k, key_stride);
                    Tiles::template load<5>(rests + second + at_k, key_stride);
                    all();
                }
            }
            Tiles::template store<0>(p.scores[0] + c * kLanes, q_stride);
            Tiles::template store<1>(p.scores[0] + (c + kCellsOfTile) * kLanes, q_stride);
            if (p.n > 1) {
                Tiles::template store<2>(p.scores[1] + c * kLanes, q_stride);
                Tiles::template store<3>(p.scores[1] + (c + kCellsOfTile) * kLanes, q_stride);
            }
        }
    }
};

inline void scale_sums(float * acc, const float * factor, int channels) {
    const F x = Simd::load(factor);
    for (int d = 0; d < channels; ++d) {
        Simd::store(acc + d * kLanes, Simd::mul(Simd::load(acc + d * kLanes), x));
    }
}

// Sums over V by tiles: 16 channels and 32 cells of V, 16 pairs of cells and 16 queries' weights.
template <class Tiles>
struct ValuesTiles : ValuesBf16 {
    // Tiles 0 to 3 are sums (two of channels by two panels), 4 and 5 values, 6 and 7 weights.
    static void add(const char * v, int channels, int, const Panels & p) {
        constexpr size_t v_stride = kPromptCells * kPair, w_stride = kLanes * 4;
        for (int j = 0; j < p.n; ++j) {
            if (p.factor[j]) {
                scale_sums(p.acc[j], p.factor[j], channels);
            }
        }
        const char * const w0 = reinterpret_cast<const char *>(p.scores[0]);
        const char * const w1 = reinterpret_cast<const char *>(p.scores[p.n - 1]);
        constexpr size_t half = 16 * w_stride;  // 32 cells
        for (int d = 0; d < channels; d += 2 * 16) {
            const bool two = d + 16 < channels;
            float * const sums0 = p.acc[0] + d * kLanes;
            float * const sums1 = p.acc[p.n - 1] + d * kLanes;
            const char * const v0 = v + static_cast<size_t>(d) * v_stride;
            const char * const v1 = two ? v0 + 16 * v_stride : v0;
            Tiles::template load<0>(sums0, w_stride);
            Tiles::template load<1>(two ? sums0 + 16 * kLanes : sums0, w_stride);
            Tiles::template load<2>(sums1, w_stride);
            Tiles::template load<3>(two ? sums1 + 16 * kLanes : sums1, w_stride);
            for (int h = 0; h < 2; ++h) {
                Tiles::template load<4>(v0 + h * 64, v_stride);
                Tiles::template load<5>(v1 + h * 64, v_stride);
                Tiles::template load<6>(w0 + h * half, w_stride);
                Tiles::template load<7>(w1 + h * half, w_stride);
                Tiles::template multiply<0, 4, 6>();
                Tiles::template multiply<1, 5, 6>();
                Tiles::template multiply<2, 4, 7>();
                Tiles::template multiply<3, 5, 7>();
            }
            Tiles::template store<0>(sums0, w_stride);
            if (two) {
                Tiles::template store<1>(sums0 + 16 * kLanes, w_stride);
            }
            if (p.n > 1) {
                Tiles::template store<2>(sums1, w_stride);
                if (two) {
                    Tiles::template store<3>(sums1 + 16 * kLanes, w_stride);
                }
            }
        }
    }
};

}  // namespace
}  // namespace edgekv
