// Products of weights with several tokens at once: the kernel's contract. It serves the types for which ggml has no kernel for four tokens: ggml
// takes Q4_1 token by token, and Q8_0 two by two with AVX2. Here a block of a row of weights is unpacked once for four tokens.
//
// Sums are in single precision over blocks of 32, each block's sum of integers exact, in the order of ggml's own kernels.
//
// Nothing here knows ggml, llama.cpp or Python.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"

namespace edgekv {

constexpr int kProductBlock = 32;  // values of a block
constexpr int kProductTokens = 4;

enum class WeightType { q4_1, q8_0 };

// As ggml lays them out; factors are f16.
struct BlockQ4_1 {
    uint16_t d, m;                     // a value is d * code + m
    uint8_t codes[kProductBlock / 2];  // low nibbles: the first half
};
struct BlockQ8_0 {
    uint16_t d;                        // a value is d * code
    int8_t codes[kProductBlock];       // not -128
};

// A block of each of four tokens, side by side, because a row of weights meets them together. Missing tokens are zero.
struct TokenBlocks {
    float d[kProductTokens];        // a value is d * code; exactly an f16
    float s[kProductTokens];        // d * the sum of the codes; exactly an f16
    int8_t codes[kProductTokens][kProductBlock];
};

struct ProductProblem {
    WeightType type;
    const char * weights;  // rows of n_blocks blocks of that type
    size_t weight_stride;  // bytes between rows
    const TokenBlocks * tokens;  // [n_tokens / kProductTokens, rounded up][n_blocks]
    int n_blocks;
    int n_tokens;
    float * out;           // [n_tokens][out_stride]; the product with row r stands at r
    size_t out_stride;     // values
};

bool product_supported(Isa isa);  // false: ggml's own kernel is the better one

// Rows [first, end) with all tokens.
void multiply_rows(const ProductProblem & problem, int first, int end, Isa isa);

// The specification: double precision, plain loops.
void multiply_rows_reference(const ProductProblem & problem, int first, int end);

}  // namespace edgekv
