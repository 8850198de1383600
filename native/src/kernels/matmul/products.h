// The contract of the kernels that multiply quantised weights by tokens. For several tokens a unit of 16 rows of weights is unpacked once, 256
// values at a time, and multiplied by all tokens; ggml's own kernels unpack a row again for every one, two or four tokens.
//
// A row's value is d * code + m, with one d and one m for each block of 32 or 16 values; a token's value is d * code. So
//   product = sum over blocks of d_token * (d * (sum of code * code) + m * (sum of the token's codes)),
// where sums of codes are exact integers, and all other arithmetic is in single precision, block after block. A token's result does not depend
// on other tokens, but their number chooses the kernel: with a few the cost is the reading of the weights, with many tiles (AMX) pay; orders of sums differ.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"

namespace edgekv {

constexpr int kProductBlock = 32;   // values of a block
constexpr int kProductChunk = 256;  // values unpacked at once
constexpr int kProductRows  = 16;   // rows of a unit
constexpr int kChunkBlocks  = kProductChunk / kProductBlock;
constexpr int kFewTokens    = 4;
constexpr int kTokensBehind = 15;  // chunks of tokens that may be read past the last one, as the rest of a tile

enum class WeightType { q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4 };
constexpr int kWeightTypes = 11;

// How rows lie: as in ggml's files; eight side by side in pieces of eight bytes, as ggml repacks q4_0, q4_k, iq4_nl and mxfp4; or sixteen side by side, as it
// lays out q4_0, q4_1, q8_0, q4_k, q5_k, q6_k and iq4_xs for tiles (AMX).
enum class WeightLayout { rows, eights, sixteens };
constexpr int kWeightLayouts = 3;

// The form of quantised tokens, as in ggml for each type of weights: a factor for each 32 values, rounded to f16, or one for 256.
enum class TokenForm { of_32, of_256 };

TokenForm token_form(WeightType type);
int weight_values(WeightType type);  // values of a block in ggml's layout: 32 or 256

// 256 values of a token, or fewer in its last chunk.
struct TokenChunk {
    int8_t codes[kProductChunk];
    float d[kChunkBlocks];       // of_256: the same in all
    float sums[kChunkBlocks];    // of a block's codes; of_32: times d
    float halves[2 * kChunkBlocks];  // of 16 codes, not times d
};

// How a gate weighs: gate / (1 + exp(-y)) * up. silu (SwiGLU): y = gate. gelu (GEGLU, by tanh, arXiv:1606.08415):
// y = kGeluLinear * gate * (1 + kGeluCubic * gate^2).
enum class GateForm { silu, gelu };
constexpr float kGeluLinear = 1.5957691216f;  // 2 * sqrt(2 / pi)
constexpr float kGeluCubic  = 0.044715f;

// The orders in which few tokens' kernels read rows: sixteen side by side, four of the K types, and ggml's groups of eight.
enum class WeightWalk { sixteen, four, eights, eights_of_k };
constexpr int kWeightWalks = 4;
WeightWalk weight_walk(WeightType type, WeightLayout layout);

// How weights are fetched ahead. It changes no result. Which way is the fastest follows from the processor, and is measured for each walk.
struct WeightFetch {
    int near;     // chunks of sixteen rows ahead, of which each row is fetched into L1; 0: none
    bool stream;  // the next block of rows is fetched into L2, as one piece
};
constexpr WeightFetch kDefaultFetch = {2, true};

struct ProductProblem {
    WeightType type;
    WeightLayout layout;
    const char * weights;
    size_t weight_stride;     // bytes of a row, not for sixteens
    const TokenChunk * tokens;  // [n_values / kProductChunk, rounded up][token_stride], the first n_tokens of each; kTokensBehind more can be read
    size_t token_stride;
    int n_values;             // of a row, a multiple of kProductBlock and of weight_values()
    int n_tokens;
    const int32_t * places;   // [n_tokens]: each token's row of `out`; null: token t has row t
    float * out;              // [rows][out_stride]; the product with row r of the weights is at r
    size_t out_stride;        // values
    WeightFetch fetch;

    float * out_row(int token) const { return out + static_cast<size_t>(places ? places[token] : token) * out_stride; }
};

bool product_supported(Isa isa, WeightLayout layout);  // false: there is no kernel

struct ProductKernels {
    // Multiplies rows [first, end) by all tokens. first is a multiple of kProductRows, end at least kProductRows.
    void (*multiply)(const ProductProblem & problem, int first, int end);
    // The same for at most kFewTokens tokens; each gets the same bits as alone.
    void (*multiply_few)(const ProductProblem & problem, int first, int end);
    // Quantises n values of a token, a multiple of kProductBlock (of_256: of kProductChunk), into every `stride`-th chunk of `out`. Codes and
    // factors equal ggml's.
    void (*quantise)(const float * values, int n, TokenForm form, TokenChunk * out, size_t stride);
    // The quantising node can do these steps of earlier nodes. n is a multiple of kProductBlock; `out` must not overlap the inputs.
    float (*rms_factor)(const float * values, int n, float eps);  // 1 / sqrt(mean of the squares + eps)
    void (*weigh_values)(const float * values, float factor, const float * weights, int n, float * out);  // values * factor * weights
    void (*gate_values)(GateForm form, const float * gate, const float * up, int n, float * out);
};
// A graph that was built with another instruction set may have products where the present one has none: then the best one's serve.
const ProductKernels & product_kernels(Isa isa);

// The specifications: plain loops, products in double.
void multiply_rows_reference(const ProductProblem & problem, int first, int end);
void quantise_token_reference(const float * values, int n, TokenForm form, TokenChunk * out, size_t stride);
float rms_factor_reference(const float * values, int n, float eps);
void weigh_values_reference(const float * values, float factor, const float * weights, int n, float * out);
void gate_values_reference(GateForm form, const float * gate, const float * up, int n, float * out);

// A weight's value, from its block.
double weight_value(const ProductProblem & problem, int row, int at);

}  // namespace edgekv
