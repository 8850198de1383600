// Checks how pairs of tokens and experts are sorted, against a look at all pairs for each expert.
//   test_expert_routes
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "checks.h"
#include "host_memory.h"
#include "attention/cpu/expert_routes.h"

using namespace edgekv;

namespace {

void check(int n_experts, int n_used, int n_tokens, size_t stride, unsigned seed) {
    std::mt19937 random(seed);
    test::AtEndVector<int32_t> ids(stride * static_cast<size_t>(n_tokens - 1) + static_cast<size_t>(n_used));
    std::generate(ids.begin(), ids.end(), [&] { return static_cast<int32_t>(random() % static_cast<unsigned>(n_experts)); });
    test::AtEndVector<char> memory(ExpertRoutes::size(n_experts, n_used * n_tokens));
    ExpertRoutes got(memory.data(), n_experts);
    route(ids.data(), stride, n_used, n_tokens, n_experts, got);

    std::vector<int32_t> first{0}, places, chosen;
    for (int e = 0; e < n_experts; ++e) {
        for (int pair = 0; pair < n_used * n_tokens; ++pair) {
            if (ids[static_cast<size_t>(pair / n_used) * stride + static_cast<size_t>(pair % n_used)] == e) {
                places.push_back(pair);
            }
        }
        if (static_cast<int32_t>(places.size()) > first.back()) {
            chosen.push_back(e);
        }
        first.push_back(static_cast<int32_t>(places.size()));
    }
    CHECK(static_cast<size_t>(*got.n_chosen) == chosen.size() && std::equal(chosen.begin(), chosen.end(), got.chosen), "%d experts", n_experts);
    CHECK(std::equal(first.begin(), first.end(), got.first) && std::equal(places.begin(), places.end(), got.places),
          "%d experts, %d of them for each of %d tokens, %zu apart", n_experts, n_used, n_tokens, stride);
}

}  // namespace

int main() {
    unsigned seed = 0;
    for (const int n_experts : {1, 2, 7, 128}) {
        for (const int n_used : {1, 3, 8}) {
            for (const int n_tokens : {1, 2, 33}) {
                check(n_experts, n_used, n_tokens, static_cast<size_t>(n_used), ++seed);
                check(n_experts, n_used, n_tokens, static_cast<size_t>(n_used + 5), ++seed);  // a view of all experts in order of their weight
            }
        }
    }
    return test::finish();
}
