// Products of weights of types Q4_1 and Q8_0 with several tokens.
//
//   1. The quantise node turns the tokens' floats into blocks of 8 bits, as ggml does it. Each thread takes a range of blocks of every token.
//      Thread 0 clears the counters in front of them.
//   2. The product node's threads claim units of rows of weights as they come free, and multiply each with all tokens, four at a time.
//
// Matrices that meet the same tokens, as those of Q, K and V do, share the quantise node; each has a counter of its own there. They are two
// nodes, because a node has no barrier inside.
//
// The quantise node writes its own value: counters, then blocks. A product reads the weights and these blocks; it writes its own value and the
// one counter. Nothing outside the graph is touched but the number of products made, for tests.
#include "plane/host/product_nodes.h"

#include "state/state.h"
#include "kernels/products/products.h"
#include "plane/backends.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

namespace edgekv {
namespace {

// The counters in front of the quantised tokens: for each product with them, the next row of weights to claim.
constexpr size_t kHead = 64;
constexpr int kShared  = kHead / sizeof(std::atomic<int>);
constexpr int kUnitRows = 32;  // they stay in a core's first-level cache, together with four tokens
constexpr int kChunk    = 16;  // blocks quantised at once

// ggml's own block of a token
struct Q8Block {
    ggml_fp16_t d, s;
    int8_t      codes[kProductBlock];
};

static_assert(sizeof(BlockQ4_1) == 20 && sizeof(BlockQ8_0) == 34 && sizeof(Q8Block) == 36, "blocks as ggml lays them out");

std::atomic<bool> g_used{true};
std::atomic<int64_t> g_made{0};

enum ProductSource { PRODUCT_WEIGHTS, PRODUCT_TOKENS, N_PRODUCT_SOURCES };

// n blocks of a token, at `mine` among the four
void quantise(const float * values, int64_t n, int mine, TokenBlocks * out) {
    Q8Block     blocks[kChunk];
    ggml_fp16_t halves[2 * kChunk];
    float       factors[2 * kChunk];
    for (int64_t first = 0; first < n; first += kChunk) {
        const int64_t some = std::min<int64_t>(kChunk, n - first);
        cpu_type_traits(GGML_TYPE_Q8_1)->from_float(values + first * kProductBlock, blocks, some * kProductBlock);
        for (int64_t b = 0; b < some; ++b) {
            halves[2 * b]     = blocks[b].d;
            halves[2 * b + 1] = blocks[b].s;
        }
        ggml_fp16_to_fp32_row(halves, factors, 2 * some);
        for (int64_t b = 0; b < some; ++b) {
            TokenBlocks & to = out[first + b];
            to.d[mine] = factors[2 * b];
            to.s[mine] = factors[2 * b + 1];
            std::memcpy(to.codes[mine], blocks[b].codes, sizeof blocks[b].codes);
        }
    }
}

void run_quantise(ggml_tensor * dst, int ith, int nth, void *) {
    const ggml_tensor * cur = dst->src[0];
    const int64_t n_blocks  = cur->ne[0] / kProductBlock;
    const int64_t first = n_blocks * ith / nth, end = n_blocks * (ith + 1) / nth;
    auto * out = reinterpret_cast<TokenBlocks *>(static_cast<char *>(dst->data) + kHead);

    for (int i = 0; ith == 0 && i < kShared; ++i) {
        new (static_cast<std::atomic<int> *>(dst->data) + i) std::atomic<int>(0);
    }
    for (int64_t token = 0; token < cur->ne[1]; ++token) {
        const auto * values = reinterpret_cast<const float *>(static_cast<const char *>(cur->data) + token * cur->nb[1]);
        TokenBlocks * group = out + token / kProductTokens * n_blocks;
        if (token % kProductTokens == 0 && token + kProductTokens > cur->ne[1]) {
            std::fill(group + first, group + end, TokenBlocks{});  // the group's last tokens do not exist
        }
        quantise(values + first * kProductBlock, end - first, static_cast<int>(token % kProductTokens), group + first);
    }
}

// `turn`: the number of this product among those with the same tokens
void run_product(ggml_tensor * dst, int ith, int nth, void * turn) {
    const ggml_tensor * weights = dst->src[PRODUCT_WEIGHTS];
    char * tokens     = static_cast<char *>(dst->src[PRODUCT_TOKENS]->data);
    const int n_rows  = static_cast<int>(weights->ne[1]);

    const ProductProblem problem = {
        /*.type          =*/ weights->type == GGML_TYPE_Q4_1 ? WeightType::q4_1 : WeightType::q8_0,
        /*.weights       =*/ static_cast<const char *>(weights->data),
        /*.weight_stride =*/ weights->nb[1],
        /*.tokens        =*/ reinterpret_cast<const TokenBlocks *>(tokens + kHead),
        /*.n_blocks      =*/ static_cast<int>(weights->ne[0] / kProductBlock),
        /*.n_tokens      =*/ static_cast<int>(dst->ne[1]),
        /*.out           =*/ static_cast<float *>(dst->data),
        /*.out_stride    =*/ dst->nb[1] / sizeof(float),
    };

    if (ith == 0) {
        g_made.fetch_add(1, std::memory_order_relaxed);
    }

    // threads claim rows of weights as they come free, in small units only if there would be too few for all
    auto & next = reinterpret_cast<std::atomic<int> *>(tokens)[reinterpret_cast<intptr_t>(turn)];
    const int unit = std::max(2, std::min(kUnitRows, n_rows / (4 * nth) / 2 * 2));
    for (int first = next.fetch_add(unit, std::memory_order_relaxed); first < n_rows; first = next.fetch_add(unit, std::memory_order_relaxed)) {
        multiply_rows(problem, first, std::min(n_rows, first + unit), selected_isa());
    }
}

// llama.cpp has a GPU multiply long batches, with weights on the host too.
bool has_gpu() {
    static const bool gpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU) || ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU);
    return gpu;
}

// ggml keeps single tokens: they cost the reading of the weights, whoever multiplies.
bool multiplies(const ggml_tensor * w, const ggml_tensor * cur) {
    return (w->type == GGML_TYPE_Q4_1 || w->type == GGML_TYPE_Q8_0) && product_supported(selected_isa()) && !has_gpu() && w->buffer &&
           ggml_backend_buffer_is_host(w->buffer) && !w->view_src && !w->extra && w->ne[2] == 1 && w->ne[3] == 1 &&
           w->nb[0] == ggml_type_size(w->type) && cur->type == GGML_TYPE_F32 && cur->ne[0] == w->ne[0] &&
           cur->ne[1] > 1 && cur->ne[2] == 1 && cur->ne[3] == 1 && cur->nb[0] == sizeof(float);
}

// The tokens for which a quantise node was made last, while a graph is built.
struct Quantised {
    uint64_t      graph  = 0;
    ggml_tensor * tokens = nullptr, * node = nullptr;
    int           n_products = 0;
};
thread_local Quantised t_last;

Quantised & quantised(const llama_edgekv_product & args) {
    if (args.graph == t_last.graph && args.tokens == t_last.tokens && t_last.n_products < kShared) {
        return t_last;
    }
    const int64_t n_groups = (args.tokens->ne[1] + kProductTokens - 1) / kProductTokens;
    const int64_t n_blocks = n_groups * (args.tokens->ne[0] / kProductBlock);
    const int64_t n_bytes  = static_cast<int64_t>(kHead + n_blocks * sizeof(TokenBlocks));
    ggml_tensor * tokens   = args.tokens;
    t_last = { args.graph, tokens, nullptr, 0 };
    t_last.node = ggml_custom_4d(args.ctx, GGML_TYPE_I8, n_bytes, 1, 1, 1, &tokens, 1, run_quantise, GGML_N_TASKS_MAX, nullptr);
    return t_last;
}

}  // namespace

ggml_tensor * build_product(const llama_edgekv_product & args) {
    if (!g_used.load(std::memory_order_relaxed) || !multiplies(args.weights, args.tokens)) {
        return nullptr;
    }

    Quantised &   with    = quantised(args);
    ggml_tensor * sources[N_PRODUCT_SOURCES] = { args.weights, with.node };
    void *        turn    = reinterpret_cast<void *>(static_cast<intptr_t>(with.n_products++));
    return ggml_custom_4d(args.ctx, GGML_TYPE_F32, args.weights->ne[1], args.tokens->ne[1], 1, 1, sources, N_PRODUCT_SOURCES, run_product,
                          GGML_N_TASKS_MAX, turn);
}

int64_t use_products(bool use) {
    g_used.store(use, std::memory_order_relaxed);
    return g_made.load(std::memory_order_relaxed);
}

}  // namespace edgekv
