// The product of rows that ggml keeps side by side in eights with a few tokens, over the Simd of the translation unit that includes this. Types with a d
// for each 32 values; products_of_k.h has Q4_K's. A vector has eight codes of each row of a set, so codes are used as they lie.
#pragma once

#include "kernels/matmul/products_kernel.h"

namespace edgekv {
namespace {

constexpr int kSets = 16 / Simd::kLanes;  // of eight rows' vectors

// Stores the products of eight rows: each row's two parts, less what its least values make.
template <int NT>
void store_eight(const ProductProblem & p, int row, const Simd::F (&sums)[kSets][NT], const __m256 (&least)[NT]) {
    for (int t = 0; t < p.n_tokens; ++t) {
        alignas(64) float parts[16], under[8];
        for (int set = 0; set < kSets; ++set) {
            Simd::store(parts + set * Simd::kLanes, sums[set][t]);
        }
        _mm256_store_ps(under, least[t]);
        for (int r = 0; r < 8; ++r) {
            p.out_row(t)[row + r] = parts[2 * r] + parts[2 * r + 1] - under[r];
        }
    }
}

// Multiplies eight rows by up to NT tokens; each gets the same bits as alone. With fewer tokens, the last one fills the missing places.
template <class Type, int NT>
void multiply_eight(const ProductProblem & p, int row) {
    constexpr bool kSigned = Type::kRange == CodeRange::i8;
    constexpr int kLeast = !kSigned ? Type::kLess : flipped<Type>() ? kUnsigned : 0;  // m is -kLeast * d
    const auto * blocks = reinterpret_cast<const typename Type::Block *>(p.weights + static_cast<size_t>(row) * p.weight_stride);
    Simd::F sums[kSets][NT];
    __m256 least[NT];
    for (int t = 0; t < NT; ++t) {
        least[t] = _mm256_setzero_ps();
        for (int set = 0; set < kSets; ++set) {
            sums[set][t] = Simd::zero();
        }
    }
    Ahead<Type, 8> ahead(p, row);

    for (int chunk = 0; chunk * kProductChunk < p.n_values; ++chunk) {
        const int n_blocks = std::min(kChunkBlocks, p.n_values / kProductBlock - chunk * kChunkBlocks);
        const TokenChunk * x[NT];
        for (int t = 0; t < NT; ++t) {
            x[t] = p.tokens + static_cast<size_t>(chunk) * p.token_stride + std::min(t, p.n_tokens - 1);
        }
        ahead.at(chunk);
        for (int b = 0; b < n_blocks; ++b) {
            ahead.fetch(8 / kChunkBlocks);
            const auto & block = blocks[chunk * kChunkBlocks + b];
            const __m256 d = Type::eight_factors(block);
#pragma GCC unroll 2
            for (int set = 0; set < kSets; ++set) {
                Simd::I found[NT];
#pragma GCC unroll 2
                for (int piece = 0; piece < 2; ++piece) {
                    CodePair codes = Type::unpacked(Simd::iload(block.codes + 64 * piece + 32 * set));
                    codes = flipped<Type>() ? flipped_signs(codes) : codes;
#pragma GCC unroll 4
                    for (int t = 0; t < NT; ++t) {
                        const int8_t * of = x[t]->codes + b * kProductBlock + 8 * piece;
                        const Simd::I low = Simd::dup8(of), high = Simd::dup8(of + 16), before = piece == 0 ? Simd::izero() : found[t];
                        found[t] = kSigned ? Simd::dot4(Simd::dot4(before, codes.low, low), codes.high, high)
                                           : Simd::code_dot(Simd::code_dot(before, codes.low, low), codes.high, high);
                    }
                }
#pragma GCC unroll 4
                for (int t = 0; t < NT; ++t) {
                    const Simd::F dots = Simd::to_float(kSigned ? found[t] : Simd::code_sums(Simd::izero(), found[t]));
                    sums[set][t] = Simd::fma(dots, Simd::doubled(times(d, x[t]->d[b]), set), sums[set][t]);
                }
            }
            for (int t = 0; kLeast && t < NT; ++t) {
                least[t] = _mm256_fmadd_ps(d, _mm256_set1_ps(x[t]->sums[b]), least[t]);
            }
        }
    }
    for (int t = 0; t < NT; ++t) {
        least[t] = times(least[t], kLeast);
    }
    store_eight(p, row, sums, least);
}

template <class Type>
void multiply_eights(const ProductProblem & p, int first, int end) {
    for (int row = first; row < end; row += 8) {
        p.n_tokens == 1 ? multiply_eight<Type, 1>(p, row) : p.n_tokens == 2 ? multiply_eight<Type, 2>(p, row) : multiply_eight<Type, kFewTokens>(p, row);
    }
}

}  // namespace
}  // namespace edgekv
