// Measures a prompt kernel's speed on this processor.
#include "api/guard.h"
#include "kernels/prefill/prompt.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

using namespace edgekv;

namespace {

constexpr int kTokens = 64, kCells = 1024, kHeadDim = 64, kHeads = 4;  // one KV head: a quarter of a million logits, under a millisecond
constexpr int kTurns = 3;

// Arbitrary values without subnormals: f16 bits around 1.
struct Work {
    std::vector<float> q = std::vector<float>(static_cast<size_t>(kTokens) * kHeads * kHeadDim, 0.125f);
    std::vector<float> out = q;
    std::vector<uint16_t> rows = std::vector<uint16_t>(static_cast<size_t>(kCells) * kHeadDim);
    std::vector<Seen> seen = std::vector<Seen>(static_cast<size_t>(prompt_token_blocks(kTokens)) * prompt_cell_blocks(kCells), Seen::all);
    std::vector<char> memory;
    PromptProblem problem = {};
    PromptPlan plan = {};

    Work() {
        for (size_t i = 0; i < rows.size(); ++i) {
            rows[i] = static_cast<uint16_t>(0x3800 + i * 7919 % 0x800);
        }
        AttendProblem & p = problem.attend;
        p.head_dim         = kHeadDim;
        p.n_head           = kHeads;
        p.n_head_kv        = 1;
        p.n_tokens         = kTokens;
        p.n_cells          = kCells;
        p.page_tokens      = 16;
        p.q                = reinterpret_cast<const char *>(q.data());
        p.q_stride_head    = kHeadDim * sizeof(float);
        p.q_stride_token   = kHeads * p.q_stride_head;
        p.k_type           = p.v_type = CellType::f16;
        p.k                = p.v = reinterpret_cast<const char *>(rows.data());
        p.k_stride_cell    = p.v_stride_cell = p.k_stride_head = p.v_stride_head = kHeadDim * sizeof(uint16_t);
        p.mask_type        = MaskType::none;
        p.scale            = 1.0f / std::sqrt(static_cast<float>(kHeadDim));
        p.out              = reinterpret_cast<char *>(out.data());
        p.out_stride_head  = p.q_stride_head;
        p.out_stride_token = p.q_stride_token;
        problem.seen        = seen.data();
        problem.seen_stride = prompt_cell_blocks(kCells);
        plan = prompt_plan(p, 1);
        memory.resize(plan.scratch_bytes + 64);
    }

    double seconds(Isa isa) {
        char * const scratch = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
        double least = INFINITY;
        for (int turn = 0; turn < kTurns; ++turn) {
            const auto begin = std::chrono::steady_clock::now();
            for (int item = 0; item < plan.n_items; ++item) {
                prompt_attend(problem, plan, item, scratch, isa);
            }
            least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        }
        return least;
    }
};

}  // namespace

edgekv_status edgekv_time_prompts(int isa, double * seconds) {
    if (!edgekv_isa_supported(isa)) {
        return fail(EDGEKV_UNSUPPORTED, "there is no such instruction set here");
    }

    return guarded([&] {
        *seconds = Work().seconds(kAllIsa[isa]);
        return EDGEKV_OK;
    });
}
