// The product of rows with a few tokens, over the Simd of the translation unit that includes this. The cost is the reading of the weights: sixteen rows
// are unpacked into registers and multiplied by the tokens there, block after block.
#pragma once

#include "kernels/matmul/products_of_k.h"
#include "kernels/matmul/token_values.h"

namespace edgekv {
namespace {

constexpr int kRowSets = kProductRows / Simd::kLanes;  // a set of kLanes rows has four vectors: of rows r, r + 4 and so on

// Adds the part from m. By eight rows, as factors() stores them: a load across two stores would wait for both.
template <class Type>
inline void add_least(const Panel & panel, const TokenChunk & x, int n_blocks, __m256 (&least)[2]) {
    constexpr int width = Type::kWidth, per_block = kProductBlock / width;
    if (Type::kRange == CodeRange::i8 && !flipped<Type>()) {
        return;
    }
    for (int i = 0; i < n_blocks * per_block; ++i) {
        const __m256 sum = _mm256_set1_ps(width == 16 ? x.halves[i] : x.sums[i]), by = _mm256_set1_ps(x.d[i / per_block]);
        for (int eight = 0; eight < 2; ++eight) {
            least[eight] = _mm256_fmadd_ps(_mm256_load_ps(panel.m[i] + 8 * eight), Type::kOf256 ? _mm256_mul_ps(by, sum) : sum, least[eight]);
        }
    }
}

// Multiplies d of a chunk by the token's d.
template <class Type>
inline void with_token(Panel & panel, const TokenChunk & x, int n_blocks) {
    constexpr int per_block = kProductBlock / Type::kWidth;
    for (int i = 0; i < n_blocks * per_block; ++i) {
        for (int eight = 0; eight < 2; ++eight) {
            float * d = panel.d[i] + 8 * eight;
            _mm256_store_ps(d, times(_mm256_load_ps(d), x.d[i / per_block]));
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

// Adds the product of a block's codes and a token's codes. The factors are d times the token's d, one for each half of the block if the type has two.
template <class Type>
[[gnu::always_inline]] inline Simd::F plus_block(CodePair codes, const int8_t * token, Simd::F first, Simd::F second, Simd::F sum) {
    const Simd::I none = Simd::izero(), low = Simd::dup16(token), high = Simd::dup16(token + 16);
    if (Type::kWidth == 16) {
        sum = Simd::fma(first, dots<Type>(none, codes.low, low), sum);
        return Simd::fma(second, dots<Type>(none, codes.high, high), sum);
    }
    const Simd::I part = Type::kRange == CodeRange::i8 ? Simd::dot4(none, codes.low, low) : Simd::code_dot(none, codes.low, low);
    return Simd::fma(first, dots<Type>(part, codes.high, high), sum);
}

// Adds a step's blocks of vector V of a set of rows that begins at `column`.
template <class Type, int V>
[[gnu::always_inline]] inline Simd::F plus_step(const Panel & panel, const Rows & rows, int column, int step, const TokenChunk & x, Simd::F sum) {
    const auto factor = [&](int i) __attribute__((always_inline)) { return Simd::fourth<V>(Simd::load(panel.d[i] + column)); };
    each_block<Type, flipped<Type>()>(rows, column + V, step, [&](int b, CodePair codes) __attribute__((always_inline)) {
        const Simd::F first = factor(Type::kWidth == 16 ? 2 * b : b), second = Type::kWidth == 16 ? factor(2 * b + 1) : first;
        sum = plus_block<Type>(codes, x.codes + b * kProductBlock, first, second, sum);
    });
    return sum;
}

// Stores the products of sixteen rows with a token.
inline void store_sums(const ProductProblem & p, int token, int row, int end, const Simd::F (&sums)[kRowSets][4], const __m256 (&least)[2]) {
    alignas(64) float out[kProductRows];
    for (int set = 0; set < kRowSets; ++set) {
        Simd::store(out + set * Simd::kLanes, Simd::quad(sums[set][0], sums[set][1], sums[set][2], sums[set][3]));
    }
    for (int eight = 0; eight < 2; ++eight) {
        _mm256_store_ps(out + 8 * eight, _mm256_add_ps(_mm256_load_ps(out + 8 * eight), least[eight]));
    }
    store_sixteen(p, token, row, end, out);
}

template <class Type>
void multiply_sixteen(const ProductProblem & p, int row, int end) {
    alignas(64) Panel panel;  // its factors
    Simd::F sums[kRowSets][4];
    Ahead<Type> ahead(p, row);
    __m256 least[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int set = 0; set < kRowSets; ++set) {
        sums[set][0] = sums[set][1] = sums[set][2] = sums[set][3] = Simd::zero();
    }

    for (int chunk = 0; chunk * kProductChunk < p.n_values; ++chunk) {
        const int n_blocks   = std::min(kChunkBlocks, p.n_values / kProductBlock - chunk * kChunkBlocks), n_steps = n_blocks / Type::kAtOnce;
        const int n_ahead    = (kProductRows + n_steps - 1) / n_steps;  // rows fetched in a step
        const Rows rows      = rows_at<Type>(p, row, end, chunk);
        const TokenChunk & x = p.tokens[static_cast<size_t>(chunk) * p.token_stride];
        ahead.at(chunk);
        factors<Type>(rows, n_blocks, panel);
        add_least<Type>(panel, x, n_blocks, least);
        with_token<Type>(panel, x, n_blocks);
        for (int step = 0; step < n_steps; ++step) {
            ahead.fetch(n_ahead);
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
    store_sums(p, 0, row, end, sums, least);
}

// Adds a chunk's blocks of vector V of a set of rows, multiplied by NT tokens: the rows are unpacked into registers once for all tokens.
template <class Type, int V, int NT>
inline void plus_chunk(const Panel & panel, const Rows & rows, int column, int n_steps, const TokenChunk * const (&x)[NT], Ahead<Type> & ahead,
                       Simd::F (&sums)[kRowSets][4][NT]) {
    Simd::F (&to)[NT] = sums[column / Simd::kLanes][V];
    Simd::F found[NT];
#pragma GCC unroll 4
    for (int t = 0; t < NT; ++t) {
        found[t] = to[t];
    }
    const auto factor = [&](int i) __attribute__((always_inline)) { return Simd::fourth<V>(Simd::load(panel.d[i] + column)); };
    ahead.fetch(kProductRows / (4 * kRowSets));
    for (int step = 0; step < n_steps; ++step) {
        each_block<Type, flipped<Type>()>(rows, column + V, step, [&](int b, CodePair codes) __attribute__((always_inline)) {
            const Simd::F first = factor(Type::kWidth == 16 ? 2 * b : b), second = Type::kWidth == 16 ? factor(2 * b + 1) : first;
#pragma GCC unroll 4
            for (int t = 0; t < NT; ++t) {
                const Simd::F by = Simd::set1(x[t]->d[b]);
                found[t] = plus_block<Type>(codes, x[t]->codes + b * kProductBlock, Simd::mul(first, by), Simd::mul(second, by), found[t]);
            }
        });
    }
#pragma GCC unroll 4
    for (int t = 0; t < NT; ++t) {
        to[t] = found[t];
    }
}

// The same for up to NT tokens; each gets the same bits as alone. With fewer tokens, the last one fills the missing places.
template <class Type, int NT>
void multiply_sixteen_by(const ProductProblem & p, int row, int end) {
    alignas(64) Panel panel;  // its factors
    Simd::F sums[kRowSets][4][NT];
    __m256 least[NT][2];
    for (int t = 0; t < NT; ++t) {
        least[t][0] = least[t][1] = _mm256_setzero_ps();
        for (int set = 0; set < kRowSets; ++set) {
            sums[set][0][t] = sums[set][1][t] = sums[set][2][t] = sums[set][3][t] = Simd::zero();
        }
    }
    Ahead<Type> ahead(p, row);

    for (int chunk = 0; chunk * kProductChunk < p.n_values; ++chunk) {
        const int n_blocks = std::min(kChunkBlocks, p.n_values / kProductBlock - chunk * kChunkBlocks), n_steps = n_blocks / Type::kAtOnce;
        const Rows rows    = rows_at<Type>(p, row, end, chunk);
        const TokenChunk * x[NT];
        for (int t = 0; t < NT; ++t) {
            x[t] = p.tokens + static_cast<size_t>(chunk) * p.token_stride + std::min(t, p.n_tokens - 1);
        }
        ahead.at(chunk);
        factors<Type>(rows, n_blocks, panel);
        for (int t = 0; t < NT; ++t) {
            add_least<Type>(panel, *x[t], n_blocks, least[t]);
        }
        for (int column = 0; column < kProductRows; column += Simd::kLanes) {
            plus_chunk<Type, 0, NT>(panel, rows, column, n_steps, x, ahead, sums);
            plus_chunk<Type, 1, NT>(panel, rows, column, n_steps, x, ahead, sums);
            plus_chunk<Type, 2, NT>(panel, rows, column, n_steps, x, ahead, sums);
            plus_chunk<Type, 3, NT>(panel, rows, column, n_steps, x, ahead, sums);
        }
    }
    for (int t = 0; t < p.n_tokens; ++t) {
        Simd::F of[kRowSets][4];
        for (int set = 0; set < kRowSets; ++set) {
            for (int v = 0; v < 4; ++v) {
                of[set][v] = sums[set][v][t];
            }
        }
        store_sums(p, t, row, end, of, least[t]);
    }
}

template <class Type>
void multiply_sixteens(const ProductProblem & p, int first, int end) {
    for (int row = first; row < end; row += kProductRows) {
        if (p.n_tokens == 1) {
            multiply_sixteen<Type>(p, row, end);
        } else if (p.n_tokens == 2) {
            multiply_sixteen_by<Type, 2>(p, row, end);
        } else {
            multiply_sixteen_by<Type, kFewTokens>(p, row, end);
        }
    }
}

void multiply_few(const ProductProblem & p, int first, int end) {
    with_type(p, [&](auto type) {
        using Type = decltype(type);
        if constexpr (std::is_same_v<Type, Q4_K<true>>) {
            multiply_interleaved_of_k(p, first, end);
        } else if constexpr (Type::kSideBySide == 8) {
            multiply_eights<Type>(p, first, end);
        } else if constexpr (Type::kPartner > 0) {
            multiply_of_k<RowOf<Type>>(p, first, end);
        } else {
            multiply_sixteens<Type>(p, first, end);
        }
    });
}

}  // namespace
}  // namespace edgekv
