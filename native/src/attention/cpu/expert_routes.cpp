#include "attention/cpu/expert_routes.h"

#include <algorithm>

namespace edgekv {

void route(const int32_t * ids, size_t stride, int n_used, int n_tokens, int n_experts, ExpertRoutes & to) {
    const auto expert = [&](int pair) { return ids[static_cast<size_t>(pair / n_used) * stride + static_cast<size_t>(pair % n_used)]; };
    const int n_pairs = n_used * n_tokens;

    std::fill_n(to.first, n_experts + 1, 0);
    for (int pair = 0; pair < n_pairs; ++pair) {
        ++to.first[expert(pair) + 1];
    }
    *to.n_chosen = 0;
    for (int e = 0; e < n_experts; ++e) {
        if (to.first[e + 1] > 0) {
            to.chosen[(*to.n_chosen)++] = e;
        }
        to.first[e + 1] += to.first[e];
    }
    // moves each expert's begin to its end, which is the next expert's begin
    for (int pair = 0; pair < n_pairs; ++pair) {
        to.places[to.first[expert(pair)]++] = pair;
    }
    std::copy_backward(to.first, to.first + n_experts, to.first + n_experts + 1);
    to.first[0] = 0;
}

}  // namespace edgekv
