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

// Calls run with a value of the problem's type. ggml repacks four of them.
template <class Run>
void with_type(const ProductProblem & p, Run run) {
    const bool eights = p.layout == WeightLayout::eights;
    switch (p.type) {
        case WeightType::q4_0: return eights ? run(Q4_0<true>{}) : run(Q4_0<false>{});
        case WeightType::q4_1: return run(Q4_1{});
        case WeightType::q5_0: return run(Q5_0{});
        case WeightType::q5_1: return run(Q5_1{});
        case WeightType::q8_0: return run(Q8_0{});
        case WeightType::q4_k: return eights ? run(Q4_K<true>{}) : run(Q4_K<false>{});
        case WeightType::q5_k: return run(Q5_K{});
        case WeightType::q6_k: return run(Q6_K{});
        case WeightType::iq4_nl: return eights ? run(IQ4_NL<true>{}) : run(IQ4_NL<false>{});
        case WeightType::iq4_xs: return run(IQ4_XS{});
        case WeightType::mxfp4: return eights ? run(MXFP4<true>{}) : run(MXFP4<false>{});
    }
}

}  // namespace
}  // namespace edgekv
