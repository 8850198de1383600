// The walk over rows and chunks of quantised weights, over the Simd of the translation unit that includes this.
#pragma once

#include <immintrin.h>

#include <algorithm>

#include "kernels/matmul/products_unpack.h"

namespace edgekv {
namespace {

constexpr int kPass = 512;  // tokens whose sums stay in a core's caches

// The first of the sixteen rows that are multiplied for those from `row` on: at the end of a matrix its last sixteen. Lanes before `row` are not stored.
inline int first_of(int row, int end) { return std::min(row, end - kProductRows); }

// Sixteen rows at a chunk.
template <class Type>
Rows rows_at(const ProductProblem & p, int row, int end, int chunk) {
    const bool eights    = p.layout == WeightLayout::eights;
    const size_t skip    = static_cast<size_t>(chunk) * (Type::kOf256 ? 1 : kChunkBlocks) * sizeof(typename Type::Block);
    const char * weights = p.weights + static_cast<size_t>(first_of(row, end)) * p.weight_stride + skip;
    const auto quarter   = [&](int q) { return weights + static_cast<size_t>(eights ? q / 2 * 8 : 4 * q) * p.weight_stride; };
    return {{quarter(0), quarter(1), quarter(2), quarter(3)}, eights ? 0 : p.weight_stride};
}

// Stores the products of the sixteen rows for those from `row` on with a token.
inline void store_sixteen(const ProductProblem & p, int token, int row, int end, const float * products) {
    std::memcpy(p.out_row(token) + row, products + (row - first_of(row, end)), static_cast<size_t>(std::min(kProductRows, end - row)) * sizeof(float));
}

// Fetches weights before they are multiplied, as the problem says: `near` chunks ahead into L1, in the order of their use, and the next block of rows into L2.
// That block is one piece of memory, which is fetched line by line, a slice of it with each chunk: a processor reads such a piece two or three times
// as fast as sixteen rows side by side.
template <class Type, int ROWS = kProductRows>
class Ahead {
public:
    Ahead(const ProductProblem & p, int row)
        : weights_(p.weights), stride_(p.weight_stride), row_(row), n_chunks_((p.n_values + kProductChunk - 1) / kProductChunk), near_(p.fetch.near),
          slice_(p.fetch.stream ? (ROWS * stride_ / static_cast<size_t>(n_chunks_) + 63) / 64 * 64 : 0) {}
    // the next calls of fetch() are for what lies ahead of `chunk`
    void at(int chunk) {
        const int ahead = chunk + near_ * kProductRows / ROWS, row = row_ + ahead / n_chunks_ * ROWS;
        from_ = weights_ + static_cast<size_t>(row) * stride_ + static_cast<size_t>(ahead % n_chunks_) * kBytes * Type::kSideBySide;
        line_ = weights_ + static_cast<size_t>(row_ + std::max(ROWS, kLeastRows)) * stride_ + static_cast<size_t>(chunk) * slice_;
        next_ = 0;
    }
    // fetches the part of n of ROWS rows
    void fetch(int n) {
        const int end = std::min(next_ + n, ROWS);
        for (size_t byte = slice_ * static_cast<size_t>(next_) / ROWS / 64 * 64; byte < slice_ * static_cast<size_t>(end) / ROWS; byte += 64) {
            _mm_prefetch(line_ + byte, _MM_HINT_T1);
        }
        for (; near_ && next_ < end; ++next_) {
            const int apart = next_ / Type::kSideBySide * Type::kSideBySide;  // rows side by side share an address
            const char * at = from_ + static_cast<size_t>(apart) * stride_ + static_cast<size_t>(next_ - apart) * kBytes;
            for (size_t byte = 0; byte < kBytes; byte += 64) {
                _mm_prefetch(at + byte, _MM_HINT_T0);
            }
        }
        next_ = end;
    }

private:
    static constexpr int kLeastRows = 8;  // a block of four rows would come too late
    static constexpr size_t kBytes  = (Type::kOf256 ? 1 : kChunkBlocks) * sizeof(typename Type::Block) / Type::kSideBySide;  // of a row's chunk

    const char * weights_, * from_ = nullptr, * line_ = nullptr;
    size_t stride_;
    int row_, n_chunks_, near_;
    size_t slice_;
    int next_ = 0;
};

// For types that ggml repacks.
template <class With, template <bool> class Type>
void either(const ProductProblem & p, int first, int end) {
    p.layout == WeightLayout::eights ? With::template run<Type<true>>(p, first, end) : With::template run<Type<false>>(p, first, end);
}

// Calls With::run with the problem's type.
template <class With>
void each_type(const ProductProblem & p, int first, int end) {
    switch (p.type) {
        case WeightType::q4_0: return either<With, Q4_0>(p, first, end);
        case WeightType::q4_1: return With::template run<Q4_1>(p, first, end);
        case WeightType::q5_0: return With::template run<Q5_0>(p, first, end);
        case WeightType::q5_1: return With::template run<Q5_1>(p, first, end);
        case WeightType::q8_0: return With::template run<Q8_0>(p, first, end);
        case WeightType::q4_k: return either<With, Q4_K>(p, first, end);
        case WeightType::q5_k: return With::template run<Q5_K>(p, first, end);
        case WeightType::q6_k: return With::template run<Q6_K>(p, first, end);
        case WeightType::iq4_nl: return either<With, IQ4_NL>(p, first, end);
        case WeightType::iq4_xs: return With::template run<IQ4_XS>(p, first, end);
        case WeightType::mxfp4: return either<With, MXFP4>(p, first, end);
    }
}

}  // namespace
}  // namespace edgekv
