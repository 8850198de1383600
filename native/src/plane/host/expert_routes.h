// Which experts' weights meet which tokens: pairs of a token and one of its experts, in the experts' order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edgekv {

struct ExpertRoutes {
    int32_t * n_chosen;  // experts that have pairs
    int32_t * chosen;    // [n_experts]: these, the first n_chosen
    int32_t * first;     // [n_experts + 1]: where each expert's pairs begin
    int32_t * places;    // [n_pairs]: a pair's number, token * n_used + which of the token's experts; those of an expert rise

    // Of one piece of memory.
    ExpertRoutes(void * at, int n_experts)
        : n_chosen(static_cast<int32_t *>(at)), chosen(n_chosen + 1), first(chosen + n_experts), places(first + n_experts + 1) {}
    static size_t size(int n_experts, int n_pairs) { return (2 * static_cast<size_t>(n_experts) + 2 + static_cast<size_t>(n_pairs)) * sizeof(int32_t); }
};

// ids: [n_tokens][stride], the first n_used of each token are its experts, each below n_experts.
void route(const int32_t * ids, size_t stride, int n_used, int n_tokens, int n_experts, ExpertRoutes & to);

}  // namespace edgekv
