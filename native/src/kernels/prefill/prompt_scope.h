// One item at work: its problem, and its part of the workspace.
#pragma once

#include "kernels/decode/attend_softmax.h"
#include "kernels/prefill/prompt_internal.h"

namespace edgekv {
namespace {

struct ItemScope {
    ItemScope(const PromptProblem & problem, const PromptPlan & plan, int index, char * scratch)
        : problem(problem), p(problem.attend), plan(plan), at(prompt_layout(p, plan)), item(prompt_item(plan, p.n_head_kv, index)),
          space(scratch), block_panels(at.block_queries / kLanes), n_panels((item.end_block - item.first_block) * block_panels),
          observes((p.mass_max != nullptr || p.mass_sum != nullptr) && item.end_block == plan.n_token_blocks) {}

    float * floats(size_t offset) const { return reinterpret_cast<float *>(space + offset); }
    int token(int block, int t) const { return prompt_first_token(p.n_tokens, item.first_block + block) + t; }
    int tokens_of(int block) const { return token(block + 1, 0) - token(block, 0); }

    const PromptProblem & problem;
    const AttendProblem & p;
    const PromptPlan & plan;
    const PromptLayout at;
    const PromptItem item;
    char * const space;
    const int block_panels;  // of a block of tokens
    const int n_panels;
    const bool observes;
};

}  // namespace
}  // namespace edgekv
