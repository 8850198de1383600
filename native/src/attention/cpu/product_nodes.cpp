// Products of quantised weights with tokens.
//
//   1. The quantise node turns the tokens' floats into codes of 8 bits, as ggml does for the type of weights. Each thread takes a range of
//      chunks of 256 values. Thread 0 clears the counters in front of them. If the floats come from an RMS norm with weights, or from SwiGLU
//      or GEGLU, the quantise node computes that step too, in place of its node.
//   2. A free thread of the product node claims the next unit of rows of weights, and multiplies it by all tokens.
//
// Matrices that multiply the same tokens in the same form, such as those of Q, K and V, share the quantise node; each has its own counter there.
//
// For a mixture of experts, a route node comes first: it sorts the pairs of a token and an expert by expert. The tokens are quantised once for each
// pair, in this order, so an expert's tokens lie side by side. A unit belongs to one expert.
//
// The steps are separate nodes, because a node has no barrier inside. The route and the quantise node write their own values; the latter's is
// counters, then chunks. A product reads the weights and these values, and writes its own value and its counter. Outside the graph, the nodes only
// count the products made, for tests.
#include "attention/cpu/product_nodes.h"

#include "state/state.h"
#include "kernels/matmul/products.h"
#include "attention/backends.h"
#include "attention/cpu/expert_routes.h"

#include "ggml-impl.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <optional>

namespace edgekv {
namespace {

// The counters in front of the quantised tokens: for each product, the next unit to claim.
constexpr size_t kHead = 64;
constexpr int kShared  = kHead / sizeof(std::atomic<int>);
constexpr int kMaxUnit = 4 * kProductRows;     // rows claimed at once, with many tokens
constexpr size_t kMaxUnitBytes = size_t{1} << 21;  // of weights claimed at once, with few tokens

std::atomic<ProductUse> g_use{ProductUse::chosen};
std::atomic<int64_t> g_made{0};
std::atomic<bool> g_left[kWeightTypes][kWeightLayouts][2];  // [.., more than kFewTokens]: left to ggml
std::atomic<WeightFetch> g_fetch[kWeightWalks] = {kDefaultFetch, kDefaultFetch, kDefaultFetch, kDefaultFetch};

// Weights are the fifth source: to ask whether a backend may run a node on repacked weights, ggml looks at the first four sources only, and
// it accepts no nodes but its own.
enum ProductSource { PRODUCT_TOKENS, PRODUCT_ROUTES, PRODUCT_WEIGHTS = 4, N_PRODUCT_SOURCES };
enum QuantiseSource { QUANTISE_TOKENS, QUANTISE_ROUTES, QUANTISE_NORM, QUANTISE_UP, N_QUANTISE_SOURCES };

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

constexpr char kRepacked[] = "CPU_REPACK", kInTiles[] = "AMX";

// Whether ggml, with AVX2, interleaves eight rows of this type. This file does not know ggml's other layouts of such buffers.
bool repacked_in_eights(ggml_type type) {
    return type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q4_K || type == GGML_TYPE_IQ4_NL || type == GGML_TYPE_MXFP4;
}

bool laid_out_in_sixteens(ggml_type type) {
    return type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q4_1 || type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_K || type == GGML_TYPE_Q5_K ||
           type == GGML_TYPE_Q6_K || type == GGML_TYPE_IQ4_XS;
}

// `buffer`: the name of ggml's kind of buffer, null for host memory.
std::optional<WeightLayout> weight_layout(ggml_type type, const char * buffer) {
    if (!buffer) {
        return WeightLayout::rows;
    }
    if (std::strcmp(buffer, kRepacked) == 0 && repacked_in_eights(type)) {
        return WeightLayout::eights;
    }
    if (std::strcmp(buffer, kInTiles) == 0 && laid_out_in_sixteens(type)) {
        return WeightLayout::sixteens;
    }
    return std::nullopt;
}

int n_chunks(const ggml_tensor * tokens) { return static_cast<int>((tokens->ne[0] + kProductChunk - 1) / kProductChunk); }

ExpertRoutes routes_of(const ggml_tensor * node, int n_experts) { return {node->data, n_experts}; }

// ggml calls it on all threads, whatever the node's number of tasks.
void run_route(ggml_tensor * dst, int ith, int, void * n_experts) {
    if (ith != 0) {
        return;
    }
    const ggml_tensor * ids = dst->src[0];
    const int n = static_cast<int>(reinterpret_cast<intptr_t>(n_experts));
    ExpertRoutes to = routes_of(dst, n);
    route(static_cast<const int32_t *>(ids->data), ids->nb[1] / sizeof(int32_t), static_cast<int>(ids->ne[0]), static_cast<int>(ids->ne[1]), n, to);
}

// The arguments of a quantise node's function. They follow ggml_custom_op_params in the node's parameters.
struct QuantiseArgs {
    TokenForm form;
    GateForm gate;
    int n_experts, n_used;  // 0: not a mixture; all tokens, in their own order
    float eps;              // of the norm
};
static_assert(sizeof(ggml_custom_op_params) + sizeof(QuantiseArgs) <= GGML_MAX_OP_PARAMS, "they must fit behind ggml's");

const float * floats(const ggml_tensor * tensor, size_t offset = 0) {
    return reinterpret_cast<const float *>(static_cast<const char *>(tensor->data) + offset);
}

void run_quantise(ggml_tensor * dst, int ith, int nth, void *) {
    QuantiseArgs args;
    std::memcpy(&args, reinterpret_cast<const char *>(dst->op_params) + sizeof(ggml_custom_op_params), sizeof args);
    const ggml_tensor * cur  = dst->src[QUANTISE_TOKENS];
    const ggml_tensor * norm = dst->src[QUANTISE_NORM];
    const ggml_tensor * up   = dst->src[QUANTISE_UP];
    const int32_t * places = args.n_experts ? routes_of(dst->src[QUANTISE_ROUTES], args.n_experts).places : nullptr;
    const int64_t n_tokens = args.n_experts ? args.n_used * cur->ne[2] : cur->ne[1], n_of_token = n_chunks(cur), n_items = n_tokens * n_of_token;
    auto * out = reinterpret_cast<TokenChunk *>(static_cast<char *>(dst->data) + kHead);

    for (int i = 0; ith == 0 && i < kShared; ++i) {
        new (static_cast<std::atomic<int> *>(dst->data) + i) std::atomic<int>(0);
    }
    const ProductKernels & kernels = product_kernels(selected_isa());
    int64_t normed = -1;
    float factor = 0.0f;
    float made[kProductChunk];
    for (int64_t item = n_items * ith / nth; item < n_items * (ith + 1) / nth; ++item) {
        const int64_t token = item / n_of_token, chunk = item % n_of_token, first = chunk * kProductChunk;
        const int n = static_cast<int>(std::min<int64_t>(kProductChunk, cur->ne[0] - first));
        size_t at = static_cast<size_t>(token) * cur->nb[1];
        if (places) {
            const int64_t pair = places[token];
            at = static_cast<size_t>(pair / args.n_used) * cur->nb[2] + static_cast<size_t>(pair % args.n_used % cur->ne[1]) * cur->nb[1];
        }
        const float * values = floats(cur, at) + first;
        if (norm) {
            if (token != normed) {
                factor = kernels.rms_factor(values - first, static_cast<int>(cur->ne[0]), args.eps);
                normed = token;
            }
            kernels.weigh_values(values, factor, floats(norm) + first, n, made);
            values = made;
        } else if (up) {
            kernels.gate_values(args.gate, values, floats(up, at) + first, n, made);
            values = made;
        }
        kernels.quantise(values, n, args.form, out + chunk * n_tokens + token, 1);
    }
}

// The weights of a matrix, or of one expert; the tokens and the sums are set by the caller.
ProductProblem problem_of(const ggml_tensor * weights, int expert = 0) {
    ProductProblem problem = {};
    problem.type          = *weight_type(weights->type);
    problem.layout        = *weight_layout(weights->type, layout_of(weights));
    problem.weights       = static_cast<const char *>(weights->data) + static_cast<size_t>(expert) * weights->nb[2];
    problem.weight_stride = weights->nb[1];
    problem.n_values      = static_cast<int>(weights->ne[0]);
    problem.fetch         = g_fetch[static_cast<int>(weight_walk(problem.type, problem.layout))].load(std::memory_order_relaxed);
    return problem;
}

// Rows of weights that a thread claims at once: for many tokens few, which stay in a cache. For few tokens each thread has one unit, since a unit's
// first chunks come late, or several of one size where a unit would be so large that a slower thread kept the others waiting.
int unit_rows(const ggml_tensor * weights, int n_experts, int nth, bool few) {
    const int share = (static_cast<int>(weights->ne[1]) * n_experts + nth - 1) / nth;
    const int n_parts = few ? 1 + static_cast<int>(share * weights->nb[1] / kMaxUnitBytes) : 8;
    const int rows = (share + n_parts - 1) / n_parts, whole = (rows + kProductRows - 1) / kProductRows * kProductRows;
    return few ? whole : std::min(kMaxUnit, whole);
}

// `turn`: this product's number among the products of the same tokens
void run_product(ggml_tensor * dst, int ith, int nth, void * turn) {
    const ggml_tensor * weights = dst->src[PRODUCT_WEIGHTS];
    const ggml_tensor * routed  = dst->src[PRODUCT_ROUTES];
    char * tokens       = static_cast<char *>(dst->src[PRODUCT_TOKENS]->data);
    const int n_rows    = static_cast<int>(weights->ne[1]), n_experts = static_cast<int>(weights->ne[2]);
    const auto n_tokens = static_cast<int>(dst->ne[1] * dst->ne[2]);  // for a mixture: pairs
    const bool few      = routed ? dst->ne[2] == 1 : dst->ne[1] <= kFewTokens;
    const int n_chosen  = routed ? *routes_of(routed, n_experts).n_chosen : 1;
    const ProductKernels & kernels = product_kernels(selected_isa());

    if (ith == 0) {
        g_made.fetch_add(1, std::memory_order_relaxed);
    }

    auto & next = reinterpret_cast<std::atomic<int> *>(tokens)[reinterpret_cast<intptr_t>(turn)];
    const int unit = unit_rows(weights, n_chosen, nth, few), n_units = (n_rows + unit - 1) / unit;
    for (int item = next.fetch_add(1, std::memory_order_relaxed); item < n_chosen * n_units; item = next.fetch_add(1, std::memory_order_relaxed)) {
        const int expert = routed ? routes_of(routed, n_experts).chosen[item / n_units] : 0, row = item % n_units * unit;
        ProductProblem problem = problem_of(weights, expert);
        problem.tokens       = reinterpret_cast<const TokenChunk *>(tokens + kHead);
        problem.token_stride = static_cast<size_t>(n_tokens);
        problem.n_tokens     = n_tokens;
        problem.out          = static_cast<float *>(dst->data);
        problem.out_stride   = dst->nb[1] / sizeof(float);
        if (routed) {
            const ExpertRoutes routes = routes_of(routed, n_experts);
            const int first = routes.first[expert];
            problem.tokens += first;
            problem.n_tokens = routes.first[expert + 1] - first;
            problem.places   = routes.places + first;
        }
        (few ? kernels.multiply_few : kernels.multiply)(problem, row, std::min(n_rows, row + unit));
    }
}

// With a GPU, llama.cpp multiplies long batches there, even if the weights are on the host.
bool has_gpu() {
    static const bool gpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU) || ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU);
    return gpu;
}

// For a mixture and a few tokens, ggml's node stays: our kernel would unpack most experts for one token.
bool fits(const llama_edgekv_product & args) {
    return args.ids ? args.ids->ne[1] == 1 || ggml_nelements(args.ids) >= args.weights->ne[2] : args.tokens->ne[2] == 1;
}

bool multiplies(const llama_edgekv_product & args) {
    const ggml_tensor * w = args.weights, * cur = args.tokens;
    const char * layout = w->buffer ? layout_of(w) : nullptr;
    return w->buffer && has_product(w->type, layout) && (layout || !w->extra) && !w->view_src && (args.ids || w->ne[2] == 1) && w->ne[3] == 1 &&
           w->ne[1] >= kProductRows && w->nb[0] == ggml_type_size(w->type) && cur->type == GGML_TYPE_F32 && cur->ne[0] == w->ne[0] && cur->ne[3] == 1 &&
           cur->nb[0] == sizeof(float) && fits(args);
}

std::atomic<bool> & left(ggml_type type, const char * layout, bool several) {
    return g_left[static_cast<int>(*weight_type(type))][static_cast<int>(*weight_layout(type, layout))][several];
}

// The last node made for some tokens, or for some choice of experts, while a graph is built.
struct Made {
    uint64_t      graph = 0;
    ggml_tensor * from = nullptr, * node = nullptr;
    int           n_products = 0;

    bool is_of(uint64_t g, const ggml_tensor * tensor) const { return g == graph && tensor == from; }
};
thread_local Made t_routes, t_quantised[2];  // t_quantised: [form]

ggml_tensor * routes(const llama_edgekv_product & args) {
    if (!t_routes.is_of(args.graph, args.ids)) {
        const int n_experts  = static_cast<int>(args.weights->ne[2]);
        const size_t n_bytes = ExpertRoutes::size(n_experts, static_cast<int>(ggml_nelements(args.ids)));
        ggml_tensor * ids    = args.ids;
        t_routes = { args.graph, ids, nullptr, 0 };
        t_routes.node = ggml_custom_4d(args.ctx, GGML_TYPE_I8, static_cast<int64_t>(n_bytes), 1, 1, 1, &ids, 1, run_route, 1,
                                       reinterpret_cast<void *>(static_cast<intptr_t>(n_experts)));
    }
    return t_routes.node;
}

bool has_floats(const ggml_tensor * tensor) {
    return tensor->type == GGML_TYPE_F32 && tensor->nb[0] == sizeof(float) && (!tensor->buffer || ggml_backend_buffer_is_host(tensor->buffer));
}

// The sources of the node that quantises `tokens`. If the node can do their last step, it takes the step's sources: an RMS norm with weights, whose
// eps goes into `how`, or a gate.
void find_sources(ggml_tensor * tokens, QuantiseArgs & how, ggml_tensor * (&sources)[N_QUANTISE_SOURCES]) {
    sources[QUANTISE_TOKENS] = tokens;
    if (tokens->op == GGML_OP_MUL && tokens->src[0]->op == GGML_OP_RMS_NORM && !how.n_experts && ggml_nrows(tokens->src[1]) == 1 &&
        tokens->src[1]->ne[0] == tokens->ne[0] && has_floats(tokens->src[1]) && has_floats(tokens->src[0]->src[0])) {
        sources[QUANTISE_TOKENS] = tokens->src[0]->src[0];
        sources[QUANTISE_NORM]   = tokens->src[1];
        std::memcpy(&how.eps, tokens->src[0]->op_params, sizeof how.eps);
    }
    const bool gated = tokens->op == GGML_OP_GLU && (ggml_get_glu_op(tokens) == GGML_GLU_OP_SWIGLU || ggml_get_glu_op(tokens) == GGML_GLU_OP_GEGLU);
    if (gated && tokens->src[1] && has_floats(tokens->src[0]) &&
        has_floats(tokens->src[1]) && ggml_are_same_stride(tokens->src[0], tokens->src[1])) {
        sources[QUANTISE_TOKENS] = tokens->src[0];
        sources[QUANTISE_UP]     = tokens->src[1];
        how.gate = ggml_get_glu_op(tokens) == GGML_GLU_OP_GEGLU ? GateForm::gelu : GateForm::silu;
    }
}

Made & quantised(const llama_edgekv_product & args, ggml_tensor * routed) {
    QuantiseArgs how = { token_form(*weight_type(args.weights->type)), GateForm::silu, 0, 0, 0.0f };
    Made & last = t_quantised[static_cast<int>(how.form)];
    if (last.is_of(args.graph, args.tokens) && last.node->src[QUANTISE_ROUTES] == routed && last.n_products < kShared) {
        return last;
    }
    int64_t n_tokens = args.tokens->ne[1];
    if (routed) {
        how.n_experts = static_cast<int>(args.weights->ne[2]);
        how.n_used    = static_cast<int>(args.ids->ne[0]);
        n_tokens      = ggml_nelements(args.ids);
    }
    const int64_t n_bytes = static_cast<int64_t>(kHead + sizeof(TokenChunk) * static_cast<size_t>(n_tokens * n_chunks(args.tokens) + kTokensBehind));
    ggml_tensor * sources[N_QUANTISE_SOURCES] = {};
    find_sources(args.tokens, how, sources);
    sources[QUANTISE_ROUTES] = routed;
    last = { args.graph, args.tokens, nullptr, 0 };
    last.node = ggml_custom_4d(args.ctx, GGML_TYPE_I8, n_bytes, 1, 1, 1, sources, N_QUANTISE_SOURCES, run_quantise, GGML_N_TASKS_MAX, nullptr);
    std::memcpy(reinterpret_cast<char *>(last.node->op_params) + sizeof(ggml_custom_op_params), &how, sizeof how);
    return last;
}

}  // namespace

bool has_product(ggml_type weights, const char * layout) {
    const auto found = weight_layout(weights, layout);
    return weight_type(weights) && found && product_supported(selected_isa(), *found) && !has_gpu();
}

const char * layout_of(const ggml_tensor * weights) {
    return ggml_backend_buffer_is_host(weights->buffer) ? nullptr : ggml_backend_buffer_name(weights->buffer);
}

WeightWalk walk_of(ggml_type weights, const char * layout) { return weight_walk(*weight_type(weights), *weight_layout(weights, layout)); }

ggml_tensor * build_product(const llama_edgekv_product & args) {
    const ggml_tensor * w = args.weights;
    const bool several = args.ids ? args.ids->ne[1] > 1 : args.tokens->ne[1] > kFewTokens;
    const ProductUse use = g_use.load(std::memory_order_relaxed);
    const bool ours = use != ProductUse::none && multiplies(args) && (use == ProductUse::all || !leaves_products(w->type, layout_of(w), several));
    return ours ? make_product(args) : nullptr;
}

ggml_tensor * make_product(const llama_edgekv_product & args) {
    ggml_tensor * routed = args.ids ? routes(args) : nullptr;
    Made &        with   = quantised(args, routed);
    ggml_tensor * sources[N_PRODUCT_SOURCES] = { with.node, routed };
    sources[PRODUCT_WEIGHTS] = args.weights;
    void *        turn   = reinterpret_cast<void *>(static_cast<intptr_t>(with.n_products++));
    const int64_t n_used = args.ids ? args.ids->ne[0] : args.tokens->ne[1], n_tokens = args.ids ? args.ids->ne[1] : 1;
    return ggml_custom_4d(args.ctx, GGML_TYPE_F32, args.weights->ne[1], n_used, n_tokens, 1, sources, N_PRODUCT_SOURCES, run_product,
                          GGML_N_TASKS_MAX, turn);
}

void set_weight_fetch(WeightWalk walk, WeightFetch fetch) { g_fetch[static_cast<int>(walk)].store(fetch, std::memory_order_relaxed); }

void leave_products(ggml_type weights, const char * layout, bool several, bool leave) {
    left(weights, layout, several).store(leave, std::memory_order_relaxed);
}

bool leaves_products(ggml_type weights, const char * layout, bool several) {
    return left(weights, layout, several).load(std::memory_order_relaxed);
}

int64_t use_products(ProductUse use) {
    g_use.store(use, std::memory_order_relaxed);
    return g_made.load(std::memory_order_relaxed);
}

}  // namespace edgekv
