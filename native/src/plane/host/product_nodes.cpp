// Products of quantised weights with several tokens.
//
//   1. The quantise node turns the tokens' floats into codes of 8 bits, as ggml does it for the type of weights. Each thread takes a range of
//      chunks of 256 values. Thread 0 clears the counters in front of them.
//   2. The product node's threads claim units of rows of weights as they come free, and multiply each with all tokens.
//
// Matrices that meet the same tokens in the same form, as those of Q, K and V do, share the quantise node; each has a counter of its own there.
// They are two nodes, because a node has no barrier inside.
//
// The quantise node writes its own value: counters, then chunks. A product reads the weights and these chunks; it writes its own value and the
// one counter. Nothing outside the graph is touched but the number of products made, for tests.
#include "plane/host/product_nodes.h"

#include "state/state.h"
#include "kernels/products/products.h"
#include "plane/backends.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <optional>

namespace edgekv {
namespace {

// The counters in front of the quantised tokens: for each product with them, the next row of weights to claim.
constexpr size_t kHead = 64;
constexpr int kShared  = kHead / sizeof(std::atomic<int>);
constexpr int kMaxUnit = 4 * kProductRows;  // rows claimed at once

std::atomic<bool> g_used{true};
std::atomic<int64_t> g_made{0};

// ggml looks at the first four sources of a node only when it asks whether a backend may run it on repacked weights, and knows no node but its own
// that may. Weights come fifth.
enum ProductSource { PRODUCT_TOKENS, PRODUCT_WEIGHTS = 4, N_PRODUCT_SOURCES };

std::optional<WeightType> weight_type(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0:   return WeightType::q4_0;
        case GGML_TYPE_Q4_1:   return WeightType::q4_1;
        case GGML_TYPE_Q5_0:   return WeightType::q5_0;
        case GGML_TYPE_Q5_1:   return WeightType::q5_1;
        case GGML_TYPE_Q8_0:   return WeightType::q8_0;
        case GGML_TYPE_Q4_K:   return WeightType::q4_k;
        case GGML_TYPE_Q5_K:   return WeightType::q5_k;
        case GGML_TYPE_Q6_K:   return WeightType::q6_k;
        case GGML_TYPE_IQ4_NL: return WeightType::iq4_nl;
        case GGML_TYPE_IQ4_XS: return WeightType::iq4_xs;
        case GGML_TYPE_MXFP4:  return WeightType::mxfp4;
        default:               return std::nullopt;
    }
}

constexpr char kRepacked[] = "CPU_REPACK";

// Whether ggml, with AVX2, lays rows of that type side by side, in eights. Others in such a buffer are not known here.
bool repacked_in_eights(ggml_type type) {
    return type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q4_K || type == GGML_TYPE_IQ4_NL || type == GGML_TYPE_MXFP4;
}

bool repacked(const ggml_tensor * w) { return std::strcmp(ggml_backend_buffer_name(w->buffer), kRepacked) == 0; }

int n_chunks(const ggml_tensor * tokens) { return static_cast<int>((tokens->ne[0] + kProductChunk - 1) / kProductChunk); }

// `form`: that of the tokens
void run_quantise(ggml_tensor * dst, int ith, int nth, void * form) {
    const ggml_tensor * cur = dst->src[0];
    const int64_t n_tokens = cur->ne[1], n_items = n_tokens * n_chunks(cur);
    auto * out = reinterpret_cast<TokenChunk *>(static_cast<char *>(dst->data) + kHead);

    for (int i = 0; ith == 0 && i < kShared; ++i) {
        new (static_cast<std::atomic<int> *>(dst->data) + i) std::atomic<int>(0);
    }
    for (int64_t item = n_items * ith / nth; item < n_items * (ith + 1) / nth; ++item) {
        const int64_t first = item / n_tokens * kProductChunk;
        const auto * values = reinterpret_cast<const float *>(static_cast<const char *>(cur->data) + item % n_tokens * cur->nb[1]) + first;
        quantise_token(values, static_cast<int>(std::min<int64_t>(kProductChunk, cur->ne[0] - first)),
                       static_cast<TokenForm>(reinterpret_cast<intptr_t>(form)), out + item, 1, selected_isa());
    }
}

// `turn`: the number of this product among those with the same tokens
void run_product(ggml_tensor * dst, int ith, int nth, void * turn) {
    const ggml_tensor * weights = dst->src[PRODUCT_WEIGHTS];
    char * tokens     = static_cast<char *>(dst->src[PRODUCT_TOKENS]->data);
    const int n_rows  = static_cast<int>(weights->ne[1]);

    const ProductProblem problem = {
        /*.type          =*/ *weight_type(weights->type),
        /*.interleaved   =*/ repacked(weights),
        /*.weights       =*/ static_cast<const char *>(weights->data),
        /*.weight_stride =*/ weights->nb[1],
        /*.tokens        =*/ reinterpret_cast<const TokenChunk *>(tokens + kHead),
        /*.n_values      =*/ static_cast<int>(weights->ne[0]),
        /*.n_tokens      =*/ static_cast<int>(dst->ne[1]),
        /*.out           =*/ static_cast<float *>(dst->data),
        /*.out_stride    =*/ dst->nb[1] / sizeof(float),
    };

    if (ith == 0) {
        g_made.fetch_add(1, std::memory_order_relaxed);
    }

    // threads claim rows of weights as they come free, in small units only if there would be too few for all
    auto & next = reinterpret_cast<std::atomic<int> *>(tokens)[reinterpret_cast<intptr_t>(turn)];
    const int unit = std::max(kProductRows, std::min(kMaxUnit, n_rows / (8 * nth) / kProductRows * kProductRows));
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
    const char * layout = w->buffer && !ggml_backend_buffer_is_host(w->buffer) ? ggml_backend_buffer_name(w->buffer) : nullptr;
    return w->buffer && has_product(w->type, layout) && (layout || !w->extra) && !w->view_src && w->ne[2] == 1 && w->ne[3] == 1 &&
           w->nb[0] == ggml_type_size(w->type) && cur->type == GGML_TYPE_F32 && cur->ne[0] == w->ne[0] && cur->ne[1] > 1 &&
           cur->ne[2] == 1 && cur->ne[3] == 1 && cur->nb[0] == sizeof(float);
}

// The tokens for which a quantise node was made last, while a graph is built; one for each form.
struct Quantised {
    uint64_t      graph  = 0;
    ggml_tensor * tokens = nullptr, * node = nullptr;
    int           n_products = 0;
};
thread_local Quantised t_last[2];

Quantised & quantised(const llama_edgekv_product & args) {
    const TokenForm form = token_form(*weight_type(args.weights->type));
    Quantised & last = t_last[static_cast<int>(form)];
    if (args.graph == last.graph && args.tokens == last.tokens && last.n_products < kShared) {
        return last;
    }
    const int64_t n_bytes = static_cast<int64_t>(kHead + sizeof(TokenChunk) * static_cast<size_t>(args.tokens->ne[1] * n_chunks(args.tokens)));
    ggml_tensor * tokens  = args.tokens;
    last = { args.graph, tokens, nullptr, 0 };
    last.node = ggml_custom_4d(args.ctx, GGML_TYPE_I8, n_bytes, 1, 1, 1, &tokens, 1, run_quantise, GGML_N_TASKS_MAX,
                               reinterpret_cast<void *>(static_cast<intptr_t>(form)));
    return last;
}

}  // namespace

bool has_product(ggml_type weights, const char * layout) {
    const bool laid_out = layout && std::strcmp(layout, kRepacked) == 0 && repacked_in_eights(weights);
    return weight_type(weights) && (!layout || laid_out) && product_supported(selected_isa()) && !has_gpu();
}

ggml_tensor * build_product(const llama_edgekv_product & args) {
    if (!g_used.load(std::memory_order_relaxed) || !multiplies(args.weights, args.tokens)) {
        return nullptr;
    }

    Quantised &   with    = quantised(args);
    ggml_tensor * sources[N_PRODUCT_SOURCES] = { with.node };
    sources[PRODUCT_WEIGHTS] = args.weights;
    void *        turn    = reinterpret_cast<void *>(static_cast<intptr_t>(with.n_products++));
    return ggml_custom_4d(args.ctx, GGML_TYPE_F32, args.weights->ne[1], args.tokens->ne[1], 1, 1, sources, N_PRODUCT_SOURCES, run_product,
                          GGML_N_TASKS_MAX, turn);
}

int64_t use_products(bool use) {
    g_used.store(use, std::memory_order_relaxed);
    return g_made.load(std::memory_order_relaxed);
}

}  // namespace edgekv
