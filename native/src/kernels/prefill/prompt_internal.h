// prompt.cpp shares this with the kernels by instruction set. Only declarations and plain data: see attend_internal.h.
#pragma once

#include "kernels/prefill/prompt.h"

namespace edgekv {

// Queries are padded to whole blocks of tokens, channels to a multiple of those that a product takes at once.
constexpr int kPromptQueries = kPromptTokens;  // of a query head and a block of tokens: whole vectors of every instruction set
constexpr int kPromptPanels = 4;               // vectors of queries that a product takes at most

// A thread's scratch; offsets in bytes. A panel is a vector of kLanes queries; its data is [..][kLanes].
struct PromptLayout {
    int n_queries;     // of an item, padded
    int block_queries; // of a block of tokens
    int k_channels;    // a multiple of 32
    int v_channels;    // a multiple of 16
    size_t q;          // 4 bytes for each query and channel
    size_t acc;        // float [panels][v_channels][kLanes]
    size_t max, sum;   // float [n_queries], logits in powers of two
    size_t k;          // 4 bytes for each of 64 cells and channel
    size_t v;
    size_t scores;     // float [kPromptPanels][64][kLanes], then the weights
    size_t bias;       // float [64][kLanes]
    size_t strip_sums, block_max;  // if mass is observed: float [strips][block_queries], [cell blocks][block_queries]
    size_t bytes;
};
PromptLayout prompt_layout(const AttendProblem & problem, const PromptPlan & plan);

struct PromptKernels {
    void (*attend)(const PromptProblem & problem, const PromptPlan & plan, int item, char * scratch);
};

extern const PromptKernels kPromptPortable;
extern const PromptKernels kPromptAvx2;
extern const PromptKernels kPromptAvx512;
extern const PromptKernels kPromptAvx512Bf16;
extern const PromptKernels kPromptAmx;
extern const PromptKernels kPromptNeon;

const PromptKernels & prompt_kernels(Isa isa);

}  // namespace edgekv
