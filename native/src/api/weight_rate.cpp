// Measures products of weights and tokens as graphs on the CPU backend, ours beside ggml's, and sets what serves.
#include "api/guard.h"
#include "kernels/matmul/products.h"
#include "attention/cpu/product_nodes.h"

#include "ggml-backend.h"
#include "llama.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

using namespace edgekv;

namespace {

constexpr size_t kBytes = size_t{64} << 20;  // of weights that meet one token: more than most processors' caches hold
constexpr int kValues = 2048, kTurns = 5;
constexpr size_t kRowsTogether = 128;        // by AMX; ggml computes no rest that is no multiple of 32, and says so
constexpr int kTokens = 64, kRows = 2048;  // the rows that several tokens meet
constexpr size_t kNodes = 8;               // of a graph
constexpr char kNone[] = "EdgeKV multiplies no such weights here";

std::atomic<uint64_t> g_graphs{uint64_t{1} << 63};  // numbers that no context's graphs have

template <auto free>
struct Freed {
    template <class T>
    void operator()(T * pointer) const { free(pointer); }
};
using Tensors = std::unique_ptr<ggml_context, Freed<ggml_free>>;
using Buffer  = std::unique_ptr<ggml_backend_buffer, Freed<ggml_backend_buffer_free>>;
using Backend = std::unique_ptr<ggml_backend, Freed<ggml_backend_free>>;

Tensors some_tensors() {
    return Tensors(ggml_init({16 * ggml_tensor_overhead() + 2 * ggml_graph_overhead_custom(kNodes, false), nullptr, true}));
}

Buffer allocate(const Tensors & tensors, ggml_backend_buffer_type_t type) {
    Buffer buffer(type ? ggml_backend_alloc_ctx_tensors_from_buft(tensors.get(), type) : nullptr);
    return buffer ? std::move(buffer) : throw std::bad_alloc();
}

template <class F>
F found(ggml_backend_dev_t device, const char * name) {
    return reinterpret_cast<F>(ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name));
}

ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t cpu, const char * layout) {
    const auto extra = found<ggml_backend_dev_get_extra_bufts_t>(cpu, "ggml_backend_dev_get_extra_bufts");
    for (ggml_backend_buffer_type_t * one = layout && extra ? extra(cpu) : nullptr; one && *one; ++one) {
        if (std::strcmp(ggml_backend_buft_name(*one), layout) == 0) {
            return *one;
        }
    }
    return layout ? nullptr : ggml_backend_dev_buffer_type(cpu);
}

// The same product of ours and of ggml's, on one thread. All bytes of the weights are the same, which no kernel's time depends on.
class Products {
public:
    enum { ours, ggmls, n_products };

    Products(edgekv_weights kind, bool several) : cpu_(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)), backend_(ggml_backend_dev_init(cpu_, nullptr)) {
        const auto type = static_cast<ggml_type>(kind.type);
        const size_t all = kBytes / ggml_row_size(type, kValues) / kRowsTogether * kRowsTogether;
        ggml_tensor * weights = ggml_new_tensor_2d(weights_.get(), type, kValues, several ? kRows : static_cast<int64_t>(all));
        ggml_tensor * tokens  = ggml_new_tensor_2d(values_.get(), GGML_TYPE_F32, kValues, several ? kTokens : 1);
        weights_buffer_ = allocate(weights_, buffer_type(cpu_, kind.layout));
        ggml_tensor * products[n_products] = {make_product({values_.get(), ++g_graphs, weights, tokens, nullptr}), ggml_mul_mat(values_.get(), weights, tokens)};
        for (int i = 0; i < n_products; ++i) {
            graphs_[i] = ggml_new_graph_custom(values_.get(), kNodes, false);
            ggml_build_forward_expand(graphs_[i], products[i]);
        }
        values_buffer_ = allocate(values_, ggml_backend_dev_buffer_type(cpu_));
        const std::vector<char> bytes(ggml_nbytes(weights), 0x11);  // f16 factors of 6e-4: no subnormals
        ggml_backend_tensor_set(weights, bytes.data(), 0, bytes.size());
        const std::vector<float> values(static_cast<size_t>(ggml_nelements(tokens)), 1.0f);
        ggml_backend_tensor_set(tokens, values.data(), 0, ggml_nbytes(tokens));
        found<ggml_backend_set_n_threads_t>(cpu_, "ggml_backend_set_n_threads")(backend_.get(), 1);
    }

    double seconds(int which) {
        const auto begin = std::chrono::steady_clock::now();
        if (ggml_backend_graph_compute(backend_.get(), graphs_[which]) != GGML_STATUS_SUCCESS) {
            throw std::runtime_error("a product could not be computed");
        }
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }

private:
    ggml_backend_dev_t cpu_;
    Backend backend_;
    Tensors weights_ = some_tensors(), values_ = some_tensors();
    Buffer weights_buffer_, values_buffer_;
    ggml_cgraph * graphs_[n_products];
};

// Of each the fastest of some runs, in turns, so that other work on the machine slows all of them.
void fastest(int n, double * seconds, const std::function<double(int)> & run) {
    std::fill(seconds, seconds + n, INFINITY);
    for (int turn = 0; turn < kTurns; ++turn) {
        for (int i = 0; i < n; ++i) {
            seconds[i] = std::min(seconds[i], run(i));
        }
    }
}

}  // namespace

int edgekv_get_weights(const edgekv_context * ctx, edgekv_weights * kinds, int capacity) {
    int n = 0;
    for (int i = 0; const ggml_tensor * weights = llama_edgekv_get_weights(edgekv_llama(ctx), i); ++i) {
        const edgekv_weights kind = {weights->type, layout_of(weights)};
        const auto same = [&](const edgekv_weights & one) {
            return one.type == kind.type && (one.layout == kind.layout || (one.layout && kind.layout && std::strcmp(one.layout, kind.layout) == 0));
        };
        if (n < capacity && ggml_n_dims(weights) > 1 && edgekv_multiplies(kind) && std::none_of(kinds, kinds + n, same)) {
            kinds[n++] = kind;
        }
    }
    return n;
}

const char * edgekv_walk(edgekv_weights kind) {
    constexpr const char * names[kWeightWalks] = {"sixteen rows", "four rows", "groups of eight", "groups of eight, K types"};
    return edgekv_multiplies(kind) ? names[static_cast<int>(walk_of(static_cast<ggml_type>(kind.type), kind.layout))] : nullptr;
}

edgekv_status edgekv_time_fetches(edgekv_weights kind, const edgekv_fetch * ways, int n_ways, double * seconds) {
    if (!edgekv_multiplies(kind)) {
        return fail(EDGEKV_UNSUPPORTED, kNone);
    }
    return guarded([&] {
        Products products(kind, false);
        fastest(n_ways, seconds, [&](int i) {
            edgekv_use_fetch(kind, ways[i]);
            return products.seconds(Products::ours);
        });
        return EDGEKV_OK;
    });
}

edgekv_status edgekv_use_fetch(edgekv_weights kind, edgekv_fetch way) {
    if (!edgekv_multiplies(kind) || way.near < 0) {
        return fail(EDGEKV_INVALID, "EdgeKV multiplies no such weights here, or there is no such way to fetch them");
    }
    set_weight_fetch(walk_of(static_cast<ggml_type>(kind.type), kind.layout), {way.near, way.stream});
    return EDGEKV_OK;
}

edgekv_status edgekv_time_products(edgekv_weights kind, bool several, double * seconds) {
    if (!edgekv_multiplies(kind)) {
        return fail(EDGEKV_UNSUPPORTED, kNone);
    }
    return guarded([&] {
        Products products(kind, several);
        fastest(Products::n_products, seconds, [&](int i) { return products.seconds(i); });
        return EDGEKV_OK;
    });
}

edgekv_status edgekv_leave_products(edgekv_weights kind, bool several, bool leave) {
    if (!edgekv_multiplies(kind)) {
        return fail(EDGEKV_INVALID, kNone);
    }
    leave_products(static_cast<ggml_type>(kind.type), kind.layout, several, leave);
    return EDGEKV_OK;
}

int64_t edgekv_weight_bytes(const edgekv_context * ctx) {
    return static_cast<int64_t>(llama_model_size(llama_get_model(edgekv_llama(ctx))));
}
