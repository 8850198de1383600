// Which types meet several tokens in tiles, and the walk over their rows and chunks. Over AVX-512 with VNNI; the functions of products_token.h serve the rest.
#pragma once

#include "kernels/matmul/products_sixteen.h"
#include "kernels/matmul/products_token.h"

namespace edgekv {
namespace {

// ---- sixteen rows side by side

template <class Type>
struct Sixteens {
    using Panel = std::conditional_t<kPieced<Type>, PiecePanel, BlockPanel>;
    static void fill(const ProductProblem & p, int row, int, int chunk, int n_blocks, Panel & to) {
        const size_t first = static_cast<size_t>(row / kProductRows * (p.n_values / Type::kValues) + chunk * kProductChunk / Type::kValues);
        const auto * blocks = reinterpret_cast<const typename Type::Block *>(p.weights) + first;
        constexpr size_t bytes = static_cast<size_t>(kProductChunk / Type::kValues) * sizeof(typename Type::Block);
        for (size_t byte = 0; byte < bytes; byte += 64) {
            _mm_prefetch(reinterpret_cast<const char *>(blocks) + bytes + byte, _MM_HINT_T1);  // the next chunk of these rows
        }
        if constexpr (kPieced<Type>) {
            edgekv::fill<Type>(*blocks, to);
        } else {
            edgekv::fill<Type>(blocks, n_blocks, to);
        }
    }
    template <class Tiles>
    static void multiply(const Panel & panel, int n_blocks, const TokenChunk * x, int n_tokens, float (*sums)[kProductRows]) {
        if constexpr (kPieced<Type>) {
            multiply_pieces<Tiles, Type::kUnder>(panel, x, n_tokens, sums);
        } else {
            multiply_panel<Tiles, !Type::kStored>(panel, n_blocks, x, n_tokens, sums);
        }
    }
};

// ---- rows as they lie in a file, or eight side by side

template <class Type>
struct BlocksOfRows {
    using Panel = BlockPanel;
    static constexpr bool kSigned = Type::kRange == CodeRange::i8 || Type::kLess > 0;
    static void fill(const ProductProblem & p, int row, int end, int chunk, int n_blocks, Panel & to) {
        alignas(64) edgekv::Panel rows;
        unpack<Type, false>(rows_at<Type>(p, row, end, chunk), n_blocks, rows);
        for (int quad = 0; quad < 8 * n_blocks; ++quad) {
            to.set(quad / 8, quad % 8, _mm512_sub_epi8(_mm512_load_si512(rows.codes[quad]), _mm512_set1_epi8(Type::kLess)));
        }
        std::memcpy(to.d, rows.d, sizeof to.d);
        std::memcpy(to.m, rows.m, sizeof to.m);
        Ahead<Type> ahead(p, row);
        ahead.at(chunk);
        ahead.fetch(kProductRows);
    }
    template <class Tiles>
    static void multiply(const Panel & panel, int n_blocks, const TokenChunk * x, int n_tokens, float (*sums)[kProductRows]) {
        multiply_panel<Tiles, kSigned>(panel, n_blocks, x, n_tokens, sums);
    }
};

// ---- the walk

constexpr int kPanels = 4;  // of sixteen rows that meet a chunk of the tokens while it is in a core's cache: chunks together are larger than that

template <class Tiles, class Source>
void multiply_in_tiles(const ProductProblem & p, int first, int end) {
    const typename Tiles::Config config;
    alignas(64) typename Source::Panel panel;
    alignas(64) float sums[kPanels][kPass][kProductRows];
    for (int row = first; row < end; row += kPanels * kProductRows) {
        const int n_rows = std::min(kPanels * kProductRows, end - row);
        for (int token = 0; token < p.n_tokens; token += kPass) {
            const int n_tokens = std::min(kPass, p.n_tokens - token);
            for (int i = 0; i * kProductRows < n_rows; ++i) {
                std::fill(sums[i][0], sums[i][n_tokens], 0.0f);
            }
            for (int chunk = 0; chunk * kProductChunk < p.n_values; ++chunk) {
                const int n_blocks   = std::min(kChunkBlocks, p.n_values / kProductBlock - chunk * kChunkBlocks);
                const TokenChunk * x = p.tokens + static_cast<size_t>(chunk) * p.token_stride + token;
                for (int i = 0; i * kProductRows < n_rows; ++i) {
                    Source::fill(p, row + i * kProductRows, end, chunk, n_blocks, panel);
                    Source::template multiply<Tiles>(panel, n_blocks, x, n_tokens, sums[i]);
                }
            }
            for (int t = 0; t < n_tokens; ++t) {
                for (int r = 0; r < n_rows; r += kProductRows) {
                    store_sixteen(p, token + t, row + r, end, sums[r / kProductRows][t]);
                }
            }
        }
    }
}

// Fewer tokens, and types whose m has a float of its own in each block of 256 values, gain nothing.
constexpr int kTokensForTiles = 24;

// Calls run with a value of the problem's type. ggml has no such layout of the other types.
template <class Run>
void with_sixteen(WeightType type, Run run) {
    switch (type) {
        case WeightType::q4_0: return run(Of16Q4_0{});
        case WeightType::q4_1: return run(Of16Q4_1{});
        case WeightType::q8_0: return run(Of16Q8_0{});
        case WeightType::q4_k: return run(Of16Q4_K{});
        case WeightType::q5_k: return run(Of16Q5_K{});
        case WeightType::q6_k: return run(Of16Q6_K{});
        case WeightType::iq4_xs: return run(Of16IQ4_XS{});
        default: return;
    }
}

void multiply_few_of_any(const ProductProblem & p, int first, int end) {
    if (p.layout != WeightLayout::sixteens) {
        return multiply_few(p, first, end);
    }
    with_sixteen(p.type, [&](auto type) { multiply_few_side_by_side<decltype(type)>(p, first, end); });
}

template <class Tiles>
void multiply_tiles(const ProductProblem & p, int first, int end) {
    if (p.layout != WeightLayout::sixteens) {
        with_type(p, [&](auto type) {
            using Type = decltype(type);
            if (Type::kLess == kByBlock || p.n_tokens < kTokensForTiles) {
                multiply_type<Type>(p, first, end);
            } else if constexpr (Type::kLess != kByBlock) {
                multiply_in_tiles<Tiles, BlocksOfRows<Type>>(p, first, end);
            }
        });
    } else if (p.n_tokens <= kTokensBeside) {
        multiply_few_of_any(p, first, end);
    } else {
        with_sixteen(p.type, [&](auto type) { multiply_in_tiles<Tiles, Sixteens<decltype(type)>>(p, first, end); });
    }
}

}  // namespace
}  // namespace edgekv
