// Measures and sets how weights are fetched before they are multiplied.
#include "api/guard.h"
#include "kernels/products/products.h"
#include "plane/host/product_nodes.h"

#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

using namespace edgekv;

namespace {

constexpr size_t kBytes = size_t{64} << 20;  // more than most processors' caches hold
constexpr int kValues = 2048, kTurns = 3;

// Each walk by one of its types.
struct Walk {
    const char * name;
    WeightType type;
    WeightLayout layout;
    size_t row_bytes;
};
constexpr Walk kWalks[kWeightWalks] = {
    {"sixteen rows", WeightType::q4_1, WeightLayout::rows, kValues / 32 * 20},
    {"four rows", WeightType::q4_k, WeightLayout::rows, kValues / 256 * 144},
    {"groups of eight", WeightType::q4_0, WeightLayout::eights, kValues / 32 * 18},
    {"groups of eight, K types", WeightType::q4_k, WeightLayout::eights, kValues / 256 * 144},
};

// Times one token's product with weights whose bytes are all the same, which no kernel's time depends on.
class Work {
public:
    explicit Work(const Walk & walk) : n_rows_(static_cast<int>(kBytes / walk.row_bytes) / kProductRows * kProductRows) {
        const std::vector<float> values(kValues, 1.0f);
        quantise_token(values.data(), kValues, token_form(walk.type), tokens_.data(), 1, selected_isa());
        out_.resize(static_cast<size_t>(n_rows_));
        problem_.type          = walk.type;
        problem_.layout        = walk.layout;
        problem_.weights       = weights_.data();
        problem_.weight_stride = walk.row_bytes;
        problem_.tokens        = tokens_.data();
        problem_.token_stride  = 1;
        problem_.n_values      = kValues;
        problem_.n_tokens      = 1;
        problem_.out           = out_.data();
        problem_.out_stride    = out_.size();
    }

    double seconds(WeightFetch fetch) {
        problem_.fetch = fetch;
        const auto begin = std::chrono::steady_clock::now();
        multiply_few(problem_, 0, n_rows_, selected_isa());
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }

private:
    int n_rows_;
    std::vector<char> weights_ = std::vector<char>(kBytes, 0x11);  // f16 factors of 6e-4: no subnormals
    std::vector<TokenChunk> tokens_ = std::vector<TokenChunk>(kValues / kProductChunk + kTokensBehind);
    std::vector<float> out_;
    ProductProblem problem_ = {};
};

bool is_walk(int walk) { return walk >= 0 && walk < kWeightWalks; }

}  // namespace

const char * edgekv_walk_name(int walk) { return is_walk(walk) ? kWalks[walk].name : nullptr; }

edgekv_status edgekv_time_fetches(int walk, const edgekv_fetch * ways, int n_ways, double * seconds) {
    if (!is_walk(walk) || !product_supported(selected_isa(), kWalks[walk].layout)) {
        return fail(EDGEKV_UNSUPPORTED, "EdgeKV multiplies no weights in such an order here");
    }

    return guarded([&] {
        Work work(kWalks[walk]);
        std::fill(seconds, seconds + n_ways, INFINITY);
        for (int turn = 0; turn < kTurns; ++turn) {
            for (int i = 0; i < n_ways; ++i) {
                seconds[i] = std::min(seconds[i], work.seconds({ways[i].near, ways[i].stream}));
            }
        }
        return EDGEKV_OK;
    });
}

edgekv_status edgekv_use_fetch(int walk, edgekv_fetch way) {
    if (!is_walk(walk) || way.near < 0) {
        return fail(EDGEKV_INVALID, "there is no such order of weights, or way to fetch them");
    }
    set_weight_fetch(static_cast<WeightWalk>(walk), {way.near, way.stream});
    return EDGEKV_OK;
}

int64_t edgekv_weight_bytes(const edgekv_context * ctx) {
    return static_cast<int64_t>(llama_model_size(llama_get_model(edgekv_llama(ctx))));
}
