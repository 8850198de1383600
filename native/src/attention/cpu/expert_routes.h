// The routes of a mixture of experts: pairs of a token and one of its experts, in the experts' order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgekv {

struct ExpertRoutes {
    int32_t * n_chosen;  // experts that have pairs
    int32_t * chosen;    // [n_experts]: the first n_chosen entries name these experts
    int32_t * first;     // [n_experts + 1]: the place of each expert's first pair
    int32_t * places;    // [n_pairs]: pair numbers, token * n_used + index among the token's experts; ascending for each expert

    // Divides one piece of memory of size() bytes.
    ExpertRoutes(void * at, int n_experts)
        : n_chosen(static_cast<int32_t *>(at)), chosen(n_chosen + 1), first(chosen + n_experts), places(first + n_experts + 1) {}
    static size_t size(int n_experts, int n_pairs) { return (2 * static_cast<size_t>(n_experts) + 2 + static_cast<size_t>(n_pairs)) * sizeof(int32_t); }
};

// ids: [n_tokens][stride]; each token's first n_used entries are its experts, each below n_experts.
void route(const int32_t * ids, size_t stride, int n_used, int n_tokens, int n_experts, ExpertRoutes & to);

}  // namespace edgekv
