// The product of rows with one token, over the Simd of the translation unit that includes this. The cost is the reading of the weights: sixteen rows
// are unpacked into registers and multiplied by the token there, block after block.
#pragma once

#include "kernels/products/token_values.h"

namespace edgekv {
namespace {

constexpr int kRowSets = kProductRows / Simd::kLanes;  // a set of kLanes rows has four vectors: of rows r, r + 4 and so on

// d of a chunk times the token's d, and the part from m. By eight rows, as factors() stores them: a load across two stores would wait for both.
template <class Type>
inline void with_token(Panel & panel, const TokenChunk & x, int n_blocks, __m256 (&least)[2]) {
    constexpr int width = Type::kWidth, per_block = kProductBlock / width;
    constexpr bool has_least = Type::kRange != CodeRange::i8 || flipped<Type>();
    for (int i = 0; i < n_blocks * per_block; ++i) {
        const float by = x.d[i / per_block], sum = width == 16 ? x.halves[i] : x.sums[i];
        for (int eight = 0; eight < 2; ++eight) {
            if (has_least) {
                least[eight] = _mm256_fmadd_ps(_mm256_load_ps(panel.m[i] + 8 * eight), _mm256_set1_ps(Type::kOf256 ? by * sum : sum), least[eight]);
            }
            float * d = panel.d[i] + 8 * eight;
            _mm256_store_ps(d, times(_mm256_load_ps(d), by));
        }
    }
}

template <class Type>
inline Simd::F dots(Simd::I sums, Simd::I codes, Simd::I token) {
    if (Type::kRange == CodeRange::i8) {
        return Simd::to_float(Simd::dot4(sums, codes, token));
    }
    return Simd::to_float(Simd::code_sums(Simd::izero(), Simd::code_dot(sums, codes, token)));
}

// Adds a step's blocks of vector V of a set of rows that begins at `column`.
template <class Type, int V>
[[gnu::always_inline]] inline Simd::F plus_step(const Panel & panel, const Rows & rows, int column, int step, const TokenChunk & x, Simd::F sum) {
    const auto factor    = [&](int i) __attribute__((always_inline)) { return Simd::fourth<V>(Simd::load(panel.d[i] + column)); };
    const Simd::I none   = Simd::izero();
    each_block<Type, flipped<Type>()>(rows, column + V, step, [&](int b, CodePair codes) __attribute__((always_inline)) {
        const Simd::I low = Simd::dup16(x.codes + b * kProductBlock), high = Simd::dup16(x.codes + b * kProductBlock + 16);
        if (Type::kWidth == 16) {
            sum = Simd::fma(factor(2 * b), dots<Type>(none, codes.low, low), sum);
            sum = Simd::fma(factor(2 * b + 1), dots<Type>(none, codes.high, high), sum);
        } else {
            const Simd::I first = Type::kRange == CodeRange::i8 ? Simd::dot4(none, codes.low, low) : Simd::code_dot(none, codes.low, low);
            sum = Simd::fma(factor(b), dots<Type>(first, codes.high, high), sum);
        }
    });
    return sum;
}

template <class Type>
void multiply_sixteen(const ProductProblem & p, int row, int end) {
    alignas(64) Panel panel;  // its factors
    Simd::F sums[kRowSets][4];
    Ahead ahead(p, row, p.n_values / kProductBlock / Type::kAtOnce);
    __m256 least[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int set = 0; set < kRowSets; ++set) {
        sums[set][0] = sums[set][1] = sums[set][2] = sums[set][3] = Simd::zero();
    }

    for (int chunk = 0; chunk * kProductChunk < p.n_values; ++chunk) {
        const int n_blocks   = std::min(kChunkBlocks, p.n_values / kProductBlock - chunk * kChunkBlocks);
        const Rows rows      = rows_at<Type>(p, row, end, chunk);
        const TokenChunk & x = p.tokens[static_cast<size_t>(chunk) * p.token_stride];
        factors<Type>(rows, n_blocks, panel);
        with_token<Type>(panel, x, n_blocks, least);
        for (int step = 0; step < n_blocks / Type::kAtOnce; ++step) {
            ahead.fetch();
#pragma GCC unroll 2
            for (int set = 0; set < kRowSets; ++set) {
                const int column = set * Simd::kLanes;
                sums[set][0] = plus_step<Type, 0>(panel, rows, column, step, x, sums[set][0]);
                sums[set][1] = plus_step<Type, 1>(panel, rows, column, step, x, sums[set][1]);
                sums[set][2] = plus_step<Type, 2>(panel, rows, column, step, x, sums[set][2]);
                sums[set][3] = plus_step<Type, 3>(panel, rows, column, step, x, sums[set][3]);
            }
        }
    }

    alignas(64) float out[kProductRows];
    for (int set = 0; set < kRowSets; ++set) {
        Simd::store(out + set * Simd::kLanes, Simd::quad(sums[set][0], sums[set][1], sums[set][2], sums[set][3]));
    }
    for (int eight = 0; eight < 2; ++eight) {
        _mm256_store_ps(out + 8 * eight, _mm256_add_ps(_mm256_load_ps(out + 8 * eight), least[eight]));
    }
    std::memcpy(p.out_row(0) + row, out, static_cast<size_t>(std::min(kProductRows, end - row)) * sizeof(float));
}

struct ByOne {
    template <class Type>
    static void run(const ProductProblem & p, int first, int end) {
        for (int row = first; row < end; row += kProductRows) {
            multiply_sixteen<Type>(p, row, end);
        }
    }
};

void multiply_token(const ProductProblem & p, int first, int end) { each_type<ByOne>(p, first, end); }

}  // namespace
}  // namespace edgekv
