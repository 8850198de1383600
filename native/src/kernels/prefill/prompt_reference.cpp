// The specification of prompt.h, in double precision.
#include "kernels/decode/attend_reference.h"
#include "kernels/prefill/prompt.h"

namespace edgekv {

void prompt_reference(const PromptProblem & problem) {
    const int n = problem.attend.n_tokens;
    attend_by_rules(problem.attend, {false, problem.dropped, problem.dropped_stride, prompt_first_token(n, prompt_token_blocks(n) - 1)});
}

}  // namespace edgekv
